"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.cli import cli  # noqa: F401 - fixtures
from game_events_tests.support.fixtures.dagster import instance  # noqa: F401 - fixture
from game_events_tests.support.fixtures.files import file_settings, landing  # noqa: F401 - fixtures
