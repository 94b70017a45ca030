"""Records without a registry's frame: which schema they have, and documents that have none."""
