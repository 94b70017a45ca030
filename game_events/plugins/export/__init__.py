"""Rows of silver POSTed to an HTTP receiver."""
