"""Rows removed by age (`RETENTION_DAYS`)."""
