"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.cli import cli, environment  # noqa: F401 - fixtures
from game_events_tests.support.fixtures.two_clusters import second, us  # noqa: F401 - fixtures
