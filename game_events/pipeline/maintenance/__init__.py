"""When tables are compacted and cleaned."""
