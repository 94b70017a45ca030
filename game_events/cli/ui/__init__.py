"""The Dagster UI behind a guard."""
