"""`dagster dev` with the guarded webserver instead of Dagster's own: ``python -m game_events.cli.ui.dagster_dev``.

Dagster starts its webserver by the name of a module and has no setting for it. `game-events up` asks the UI under a foreign
name before it shows its address: a Dagster that starts it in another way is noticed at once.
"""

from collections.abc import Sequence
from subprocess import Popen
from typing import Any

from dagster._cli import dev
from dagster_shared.ipc import open_ipc_subprocess

#: What `dagster dev` starts its webserver with.
STARTS = "open_ipc_subprocess"


def _start_guarded(parts: Sequence[str], **options: Any) -> Popen[Any]:  # noqa: ANN401 - subprocess's own
    guarded = ["game_events.cli.ui.webserver" if part == "dagster_webserver" else part for part in parts]
    return open_ipc_subprocess(guarded, **options)


if __name__ == "__main__":
    setattr(dev, STARTS, _start_guarded)
    dev.dev_command(prog_name="dagster dev")
