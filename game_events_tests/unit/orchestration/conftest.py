"""Fixtures of the tests in this folder."""

from __future__ import annotations

from game_events_tests.support.fixtures.dagster import instance, instance_on_disk  # noqa: F401 - fixtures
