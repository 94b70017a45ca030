"""Tests of the plug-in `catalog` with the shared servers."""
