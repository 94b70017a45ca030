"""Catalogs of others in which the tables are registered, with views of types and grants."""
