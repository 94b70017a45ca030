"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.cli import cli, environment  # noqa: F401 - fixtures
