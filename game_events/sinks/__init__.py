"""Rows sent on to other systems: to the right of the pipeline, to the left of Dagster and the command line."""
