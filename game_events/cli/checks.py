"""Checks as a table or as JSON: what `doctor` and `run --dry-run` show."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from game_events.cli.output import Output
from game_events.pipeline.preflight import CheckResult


def show_checks(output: Output, title: str, found: Sequence[CheckResult]) -> None:
    """All of them; exit code 1 if one has failed."""
    output.table(title, ("check", "", "detail"), [(c.check, _word(c), c.detail) for c in found])
    healthy = all(c.ok for c in found)
    output.result({"success": healthy, "checks": [c.to_dict() for c in found]})
    if not healthy:
        raise typer.Exit(1)


def _word(found: CheckResult) -> str:
    return "FAILED" if not found.ok else "LOOK" if found.look else "ok"
