"""Commands for the lakehouse: one file each."""
