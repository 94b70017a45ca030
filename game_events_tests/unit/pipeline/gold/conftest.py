"""Tables that gold's tests begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events_tests.support.worlds.gold import GoldWorld
from game_events_tests.support.worlds.unified import UnifiedWorld


@pytest.fixture
def gold_world(tmp_path: Path) -> GoldWorld:
    """Bronze alone."""
    return GoldWorld(tmp_path)


@pytest.fixture
def world(tmp_path: Path) -> UnifiedWorld:
    """Gold of two games, of which the unified table has nothing yet."""
    made = UnifiedWorld(tmp_path)
    made.gold("rummy", {"a": 1, "b": 2})
    made.gold("0123", {"a": 3})
    return made
