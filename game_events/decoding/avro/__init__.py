"""Avro schemas and payloads."""
