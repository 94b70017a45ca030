"""What is sent to Spark's workers and runs there."""
