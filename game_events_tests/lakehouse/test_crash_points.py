"""The hook by which tests end a process at a named place."""

import os
import signal
import subprocess
import sys

import pytest

from game_events.lakehouse.failpoints import VARIABLE

WALK = """
from game_events.lakehouse.failpoints import reach
for number in range(3):
    print(number, flush=True)
    reach("silver_staged")
    reach("game_committed", number)
"""


@pytest.mark.parametrize(
    ("place", "reached"),
    [
        ("silver_staged", "0"),
        ("silver_staged@2", "0 1"),
        ("game_committed", "0"),
        ("game_committed:2", "0 1 2"),
        ("game_committed@3", "0 1 2"),
    ],
)
def test_a_process_is_killed_where_it_was_asked_for_and_the_time_it_was_asked_for(place, reached):
    ended = subprocess.run(
        [sys.executable, "-c", WALK], env=os.environ | {VARIABLE: place}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.split()) == (-signal.SIGKILL, reached.split())


@pytest.mark.parametrize("place", ["", "elsewhere", "game_committed:7", "silver_staged@4"])
def test_other_places_are_passed(place):
    ended = subprocess.run([sys.executable, "-c", WALK], env=os.environ | {VARIABLE: place}, capture_output=True, check=False)
    assert ended.returncode == 0
