"""Alerts of checks: the newest evaluations, and which of them get an alert."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg
from dagster import DagsterInstance
from pydantic import BaseModel

from game_events.config.settings import Settings
from game_events.orchestration.dagster_private import AssetCheckExecutionRecordStatus
from game_events.orchestration.keys import FAILED_GAMES
from game_events.pipeline.checks.source import LOST
from game_events.pipeline.observability.alerts import LONGEST_ERROR, Alert, Severity, run_url, severity_of

#: Newest evaluations of one check that are read: more than there are between two ticks.
HISTORY = 50
EVALUATED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a check, by a run or (no id) a sensor; `at` in seconds since 1970."""

    key: dg.AssetCheckKey
    run_id: str
    at: float
    result: dg.AssetCheckEvaluation

    @property
    def games(self) -> list[str]:
        """The games that it failed for, if the check is per game."""
        value = self.result.metadata.get(FAILED_GAMES)
        games = value.data if isinstance(value, dg.JsonMetadataValue) else None
        return [str(game) for game in games] if isinstance(games, list) else []

    def failure(self, settings: Settings) -> Severity | None:
        """Severity of the failure; None: it passed, or gets no alert."""
        # Lost records have an alert for each commit (`alert_of_loss`); the check covers several commits.
        if self.result.passed or self.key.name == LOST:
            return None
        return severity_of(settings, self.key.name, wrong_rows=self.result.severity == dg.AssetCheckSeverity.ERROR)


class CheckMemory(BaseModel):
    """State of a check after the evaluation of the time `seen` (seconds since 1970); `games`: those that it failed for."""

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    @classmethod
    def after(cls, settings: Settings, evaluations: Sequence[Evaluation]) -> Self:
        """State after the last of some evaluations."""
        if not evaluations:
            return cls()
        last = evaluations[-1]
        bad = last.failure(settings)
        return cls(seen=last.at) if bad is None else cls(seen=last.at, failing=True, severity=bad, games=last.games)


def turns(settings: Settings, evaluations: Sequence[Evaluation], before: CheckMemory) -> list[Evaluation]:
    """The new evaluations (oldest first) that get an alert: the first new failure, and the last one if it ends failures."""

    def is_new(found: Evaluation) -> bool:
        new = not before.failing or not set(found.games) <= set(before.games)
        return new and found.failure(settings) is not None

    first = list(filter(is_new, evaluations))[:1]
    ended = evaluations[-1:] if before.failing or first else []
    return [*first, *(found for found in ended if found.result.passed)]


def alert_of_check(settings: Settings, found: Evaluation, job: str | None, before: CheckMemory) -> Alert:
    """Alert of a check that failed, or passes again."""
    name = f"{found.key.asset_key.to_user_string()}/{found.key.name}"
    counts = {k: v.value for k, v in found.result.metadata.items() if isinstance(v, dg.IntMetadataValue)}
    failed = Alert(
        id=f"check_failed:{name}:{found.run_id}:{found.at:.6f}",
        event="check_failed",
        severity=found.failure(settings) or before.severity,
        summary=f"check {name} failed",
        run_id=found.run_id or None,
        job=job,
        url=run_url(settings, found.run_id) if found.run_id else None,
        games=found.games,
        check=name,
        error=(found.result.description or "")[:LONGEST_ERROR] or None,
        counts={k: v for k, v in counts.items() if v is not None},
    )
    if found.failure(settings) is not None:
        return failed
    over = {"id": f"recovered:{failed.id}", "event": "recovered", "of": "check_failed", "error": None}
    return failed.model_copy(update=over | {"summary": f"check {name} passes again"})


def history(instance: DagsterInstance, key: dg.AssetCheckKey) -> list[Evaluation]:
    """The newest evaluations of a check, oldest first; the last one of each run."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, HISTORY, status=EVALUATED)
    # Not a record's own time, which is that of the run's plan.
    found = [Evaluation(key, r.run_id, r.event.timestamp, r.evaluation) for r in records if r.event and r.evaluation]
    return sorted(found, key=lambda evaluation: evaluation.at)
