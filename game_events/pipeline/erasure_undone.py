"""Erasures that somebody undid by restoring bronze to a version from before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from game_events.lakehouse.newest_commit import history
from game_events.lakehouse.suppressed import read_suppressed
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure_tables import ERASED_ROWS
from game_events.pipeline.generations import erasures


def gamers_back(pipeline: Pipeline, bronze: DeltaTable) -> int | None:
    """How many forgotten gamers may be in bronze again; 0: all were forgotten once more since; None: no erasure was undone.

    Bronze's commits do not say who went, the list says when each was finished: between the version that was restored and the
    restore, or not at all yet, is one who may be back.
    """
    if not erasures(bronze):
        return None
    spans = _undone(history(pipeline.bronze))
    if not spans:
        return None
    finished = [row["finished_at"] for row in read_suppressed(pipeline.lakehouse).entries.values()]
    return sum(
        not isinstance(at, datetime) or any(since < at.timestamp() * 1000 < until for since, until in spans) for at in finished
    )


def _undone(entries: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Times (milliseconds since 1970) between which erasures were finished that are undone.

    Whatever the log does not tell any more counts as an erasure.
    """
    times = {int(entry["version"]): int(entry["timestamp"]) for entry in entries}
    spans: list[tuple[int, int]] = []
    at = max(times)
    for entry in entries:  # the newest first; what a restore has left out has no say
        version = int(entry["version"])
        if version > at or entry.get("operation") != "RESTORE":
            continue
        at = _target(entry, times)
        between = [e for e in entries if at < int(e["version"]) < version]
        if at not in times or any(int(e.get(ERASED_ROWS) or 0) for e in between):
            spans.append((times.get(at, 0), times[version]))
    return spans


def _target(entry: Mapping[str, Any], times: Mapping[int, int]) -> int:
    """The version that a restore went back to; -1: it does not say."""
    asked = entry.get("operationParameters") or {}
    version, time = (str(asked.get(key) or "") for key in ("version", "datetime"))
    if version.isdigit():
        return int(version)
    if time.isdigit():  # as delta-rs has it
        return max((v for v, ms in times.items() if v < int(entry["version"]) and ms <= int(time)), default=-1)
    return -1
