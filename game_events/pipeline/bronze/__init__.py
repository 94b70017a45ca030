"""The bronze layer."""
