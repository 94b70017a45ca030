"""The order in which files of tests are run."""

from __future__ import annotations

from pathlib import Path

from game_events_tests import conftest

TESTS = Path(conftest.__file__).parent


def test_files_that_are_named_as_the_longest_are_there_each_once() -> None:
    assert [name for name in conftest.LONGEST if not (TESTS / name).is_file()] == []
    assert len(set(conftest.LONGEST)) == len(conftest.LONGEST)
