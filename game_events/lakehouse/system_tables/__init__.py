"""The project's own small tables: progress, event log, schema archive, suppressed data subjects."""
