"""Protobuf schemas and payloads."""
