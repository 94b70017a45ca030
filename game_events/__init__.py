"""Protobuf events from Kafka and a Schema Registry to per-game Delta tables, as a Dagster asset graph on Spark."""

__version__ = "0.2.0"
