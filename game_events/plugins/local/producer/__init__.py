"""Simulator of events for tests, benchmarks and demos: schemas, records in Kafka, and a manifest of expected results."""
