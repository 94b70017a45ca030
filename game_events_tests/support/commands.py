"""The command line in a process of its own."""

from __future__ import annotations

import sys

#: `game-events` of the interpreter that runs the tests; its arguments follow.
GAME_EVENTS = (sys.executable, "-c", "from game_events.cli.main import main; main()")
