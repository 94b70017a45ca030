"""`dagster dev` with the guarded webserver instead of Dagster's own: ``python -m game_events.plugins.local.dagster_dev``.

Dagster starts its webserver by the name of a module and has no setting for it. `game-events up` asks the UI under a foreign
name before it shows its address: a Dagster that starts it in another way is noticed at once.
"""

import logging
from collections.abc import Sequence
from subprocess import Popen
from typing import Any

from dagster._cli import dev
from dagster_shared.ipc import open_ipc_subprocess

#: What `dagster dev` starts its webserver with.
STARTS = "open_ipc_subprocess"


def _start_guarded(parts: Sequence[str], **options: Any) -> Popen[Any]:  # noqa: ANN401 - subprocess's own
    guarded = ["game_events.plugins.local.webserver" if part == "dagster_webserver" else part for part in parts]
    return open_ipc_subprocess(guarded, **options)


def is_news(record: logging.LogRecord) -> bool:
    """Whether a line of Dagster's says something: not that the `dagster.yaml` of this folder is not the instance's.

    It is what a new instance is made from (docs/dagster.md).
    """
    return not record.getMessage().startswith("Found a dagster instance configuration value")


if __name__ == "__main__":
    setattr(dev, STARTS, _start_guarded)
    logging.getLogger("dagster").addFilter(is_news)
    dev.dev_command(prog_name="dagster dev")
