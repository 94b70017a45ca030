"""What a check has found, for Dagster, the event log and the command line alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CheckResult:
    """One look at a table.

    Attributes:
        name: the check's name; `layer` is the layer whose asset it belongs to.
        passed: nothing is wrong.
        summary: one sentence: what was found, and if it is bad, where.
        counts: numbers and short texts for display; no values of events.
        wrong_rows: rows are wrong, missing or doubled if it fails (severity ERROR); else it is worth a look (WARN).
        version: Delta version of the layer's table that was looked at.
        games: games that it failed for, if it looks at each by itself.
    """

    name: str
    layer: str
    passed: bool
    summary: str
    counts: Mapping[str, int | float | str] = field(default_factory=dict)
    wrong_rows: bool = False
    version: int | None = None
    games: tuple[str, ...] = ()
