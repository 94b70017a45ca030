"""docs/extending.md, done as it says: from an empty folder, every command and every block of code, nothing else.

Commands are run by this process (support/docs/shell.py) on the servers of the tests.
"""

from __future__ import annotations

from game_events_tests.scenarios.docs.test_extending_page import ROOT, blocks

EXAMPLE = ROOT / "examples" / "my_events.py"


def test_the_example_is_the_pages_code() -> None:
    assert "\n\n".join(blocks("python")) == EXAMPLE.read_text()
