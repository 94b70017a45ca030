"""Event log, lag, alerts."""
