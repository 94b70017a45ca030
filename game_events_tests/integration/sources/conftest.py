"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.two_clusters import both, eu, one_id, second, us  # noqa: F401 - fixtures
