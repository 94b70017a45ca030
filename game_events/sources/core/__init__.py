"""What a source of records is."""
