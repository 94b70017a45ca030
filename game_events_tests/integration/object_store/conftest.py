"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.object_store import make_s3_pipeline, place, s3, tables_only  # noqa: F401 - fixtures
