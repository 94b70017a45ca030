"""`game-events`, the command: in a process of the fork server of `game-events up` if there is one, else in this one."""

import sys

from game_events.cli.common.forked_command import run_forked


def command_line() -> None:
    """Run the command of `sys.argv` and end the process. What a command line needs is imported only if it runs here."""
    code = run_forked(sys.argv)
    if code is not None:
        sys.exit(code)
    from game_events.cli.main import run_here

    run_here()
