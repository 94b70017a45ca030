"""How many generated examples a property is tried with, and which: a quarter in `make test`, all of them in `make test-all`.

Each run draws the same examples, so that no run fails by chance. `GAME_EVENTS_TEST_EXAMPLES=new` draws others, in search of
faults; `few`, which `make test` sets, says that it is to be a quarter.
"""

from __future__ import annotations

import os

from hypothesis import settings

VARIABLE, FEW, NEW = "GAME_EVENTS_TEST_EXAMPLES", "few", "new"
LEAST = 15


def examples(number: int) -> settings:
    """A decorator beside `given`."""
    few = os.environ.get(VARIABLE) == FEW
    return settings(max_examples=max(LEAST, number // 4) if few else number)


def use_profile() -> None:
    """Set what all tests with generated examples have in common; no deadline: no test depends on the machine's speed."""
    settings.register_profile("game_events", deadline=None, derandomize=os.environ.get(VARIABLE) != NEW)
    settings.load_profile("game_events")
