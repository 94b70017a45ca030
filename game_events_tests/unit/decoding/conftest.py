"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.compiler import own_child  # noqa: F401 - fixtures
