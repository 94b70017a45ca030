"""Failpoints do nothing in production; tests have them end a process."""

import os
import signal
import subprocess
import sys

import pytest

from game_events_tests.support.killing.sitecustomize import killed_at

WALK = """
from game_events.lakehouse.failpoints import reach
for number in range(3):
    print(number, flush=True)
    reach("silver_staged")
    reach("game_committed", number)
"""


def walk(place):
    environment = os.environ | killed_at(place)
    return subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, check=False)


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
    ended = walk(place)
    assert (ended.returncode, ended.stdout.split()) == (-signal.SIGKILL, reached.split())


@pytest.mark.parametrize("place", ["", "elsewhere", "game_committed:7", "silver_staged@4"])
def test_other_places_are_passed(place):
    assert walk(place).returncode == 0


def test_a_process_that_a_killed_process_would_have_started_is_killed_too():
    child = f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {WALK!r}]).returncode == -9)"
    ended = subprocess.run([sys.executable, "-c", child], env=os.environ | killed_at("silver_staged"), check=False)
    assert ended.returncode == 1


def test_without_a_handler_of_tests_a_failpoint_does_nothing():
    ended = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "1", "2"])
