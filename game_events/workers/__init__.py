"""What is pickled and runs on Spark's workers, and nothing else: functions over Arrow batches, and what they report."""
