"""docs/security.md: each thing that is said to hold names the test that shows it."""

from __future__ import annotations

import re

import pytest

from game_events_tests.support.docs.pages import DOCS, ROOT

NOT_COVERED = "not covered"
PAGE = (DOCS / "security.md").read_text()


def rows():
    """Last cells of the tables that have a column of tests, each with its row."""
    found, tested = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            tested = False
        elif cells[-1] == "test":
            tested = True
        elif tested and set(cells[-1]) != {"-"}:
            found.append((line, cells[-1]))
    return found


@pytest.mark.parametrize(("line", "tests"), rows(), ids=lambda text: text[:40])
def test_each_line_names_a_test_that_exists_or_says_that_it_is_not_covered(line, tests):
    if tests == NOT_COVERED:
        return
    named = re.findall(r"`([^`]+)`", tests)
    assert named, line
    for name in named:
        file, _, test = name.partition("::")
        path = ROOT / "game_events_tests" / file
        assert path.is_file(), name
        assert f"def {test}" in path.read_text(), name


def test_there_are_lines():
    assert len(rows()) > 20
