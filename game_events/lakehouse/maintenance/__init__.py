"""Compaction, and removal of files that no version needs."""
