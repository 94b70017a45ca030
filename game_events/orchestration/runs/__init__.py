"""Runs: tags, retention, alerts, runs without a process."""
