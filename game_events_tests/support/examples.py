"""How many generated examples a property is tried with: a quarter in `make test`, all of them in `make test-all`.

Examples are drawn anew in each run. `GAME_EVENTS_TEST_EXAMPLES=few`, which `make test` sets, says that it is to be a quarter.
"""

from __future__ import annotations

import os

from hypothesis import settings

VARIABLE, FEW = "GAME_EVENTS_TEST_EXAMPLES", "few"
LEAST = 15


def examples(number: int) -> settings:
    """A decorator beside `given`."""
    few = os.environ.get(VARIABLE) == FEW
    return settings(max_examples=max(LEAST, number // 4) if few else number)
