"""Commands for the lakehouse."""
