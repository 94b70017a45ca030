"""Parquet files of tables: writing, staging, reading."""
