"""The baseline: what a user would write with plain Spark, in an environment of its own."""
