"""The silver layer."""
