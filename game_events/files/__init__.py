"""Files as the source instead of Kafka: listing, the log of files, reading them in Spark's workers."""
