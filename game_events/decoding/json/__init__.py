"""JSON schemas and documents."""
