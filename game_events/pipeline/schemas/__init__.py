"""Schemas: the catalog of a run and their history."""
