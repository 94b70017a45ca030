"""Output of the checks before a run, for `doctor` and `run --dry-run`."""

from collections.abc import Sequence

import typer

from game_events.cli.common.output import Output
from game_events.pipeline.runs.preflight import PreflightResult


def show_checks(output: Output, title: str, found: Sequence[PreflightResult]) -> None:
    """All of them; exit code 1 if one has failed."""
    rows = [(c.check, "FAILED" if not c.ok else "LOOK" if c.look else "ok", c.detail) for c in found]
    output.table(title, ("check", "", "detail"), rows)
    healthy = all(c.ok for c in found)
    output.result({"success": healthy, "checks": [c.to_dict() for c in found]})
    if not healthy:
        raise typer.Exit(1)
