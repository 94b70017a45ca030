"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.crashes import world, worlds  # noqa: F401 - fixtures
