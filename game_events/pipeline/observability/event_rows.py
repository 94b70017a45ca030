"""A run's report as rows of `event_log`: nothing is computed here, and no value of an event, no gamer, no secret gets in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from game_events.config.masking import without_secrets
from game_events.config.naming import Names
from game_events.config.settings import Settings
from game_events.decoding.core.wire_format import ordered
from game_events.errors import without_quotes
from game_events.lakehouse.layers import is_gold
from game_events.lakehouse.system_tables.event_log import EventRow
from game_events.lakehouse.tables import BRONZE, QUARANTINE, gold_name, silver_name
from game_events.pipeline.reporting.redaction import masked, who, words_to_keep
from game_events.pipeline.reporting.report import RunReport, TableReport

SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"


@dataclass(frozen=True)
class RunFacts:
    """What a report does not know of its run.

    Attributes:
        job: what was started: a job, an asset, the continuous mode.
        seconds: how long it took.
        error: what ended it; None: it came to its end.
        stopped: it was ended from outside (Ctrl-C, the UI), not by an error.
        time: when it ended.
    """

    job: str
    seconds: float
    error: BaseException | None = None
    stopped: bool = False
    time: datetime = field(default_factory=lambda: datetime.now(UTC))


def event_rows(report: RunReport, run: RunFacts, settings: Settings) -> Sequence[EventRow]:
    """All rows of one run; columns are those of `lakehouse.event_log.SCHEMA`, what is missing is NULL."""
    rows = [_run(report, run, settings), *_facts(report, settings)]
    for row in rows:
        row["time"] = run.time
        row["detail"] = _json(row.get("detail"))
    return rows


def _facts(report: RunReport, settings: Settings) -> Iterator[dict[str, Any]]:
    for layer, seconds in report.seconds.items():
        yield {"kind": "layer", "layer": layer, "rows": report.rows(layer), "seconds": round(seconds, 3)}
    for topic in report.topics:
        read = {p: (a, b, report.lag.get(p, 0)) for p, (a, b) in sorted(report.offsets.items()) if p.topic == topic}
        yield {
            "kind": "read",
            "layer": "bronze",
            "name": topic,
            "rows": sum(end - start for start, end, _ in read.values()),
            "lag": sum(n for p, n in report.lag.items() if p.topic == topic),
            "detail": {"partitions": {str(p.partition): list(found) for p, found in read.items()}},
        }
    for entry in report.tables:
        yield _table(entry, report, settings)
    for kind, layer, counts in (
        ("rejected", "quarantine", report.rejected),
        ("other_types", "bronze", report.other_types),
        ("unrouted", "silver", report.unrouted),
    ):
        for why, rows in sorted(counts.items()):
            yield {"kind": kind, "layer": layer, "name": why, "rows": rows}
    yield from _single_counts(report, settings.names)
    for rule in report.rules.values():
        if not rule.violated:
            continue  # rules x games, in every run
        yield {
            "kind": "rule",
            "layer": rule.layer,
            "game": rule.game,
            "name": rule.rule,
            "rows": rule.violated,
            "status": rule.action,
            "detail": {"rows_checked": rule.rows},
        }
    yield from _gaps(report, settings.names)
    yield from _upkeep(report, settings)
    if report.erasure is not None:
        yield from report.erasure.event_rows()
    if report.export is not None:
        yield from report.export.event_rows()
    yield from _schema_changes(report)
    for check in report.checks:
        yield {
            "kind": "check",
            "layer": check.layer,
            "name": check.name,
            "delta_version": check.version,
            "status": "passed" if check.passed else FAILED if check.wrong_rows else "warned",
            "detail": {
                "summary": without_secrets(check.summary, settings),
                **({} if check.passed else {"counts": dict(check.counts)}),
            },
        }


def _gaps(report: RunReport, names: Names) -> Iterator[dict[str, Any]]:
    for gap in report.gaps:
        yield {
            "kind": "gap",
            "layer": "bronze",
            "table": names.name_of(BRONZE),
            "name": f"{gap.topic}[{gap.partition}]",
            "rows": gap.offsets,
            "detail": {"from": gap.start, "to": gap.end, "topic_id": gap.topic_id},
        }


def _upkeep(report: RunReport, settings: Settings) -> Iterator[dict[str, Any]]:
    for entry in report.upkeep.values():
        if entry.anything:
            words = {name: without_secrets(getattr(entry, name) or "", settings) or None for name in ("skipped", "error")}
            status = FAILED if entry.error else "skipped" if entry.skipped else "done"
            yield {"kind": "upkeep", "table": entry.table, "status": status, "detail": entry.to_dict() | words}


def _single_counts(report: RunReport, names: Names) -> Iterator[dict[str, Any]]:
    """Counts that are seldom there, a row for each."""
    for kind, layer, table, rows in (
        ("replayed", "bronze", BRONZE, report.replayed),
        ("replayed", "silver", QUARANTINE, report.readmitted),
        ("expired", "bronze", BRONZE, report.expired),
        ("suppressed", "bronze", BRONZE, report.suppressed),
    ):
        if rows:
            yield {"kind": kind, "layer": layer, "table": names.name_of(table), "rows": rows}


def _run(report: RunReport, run: RunFacts, settings: Settings) -> dict[str, Any]:
    detail: dict[str, Any] = {"started_by": who(), "settings": masked(settings)}
    if report.batches:
        detail["batches"] = [report.batches[0], report.batches[-1]]
    if report.schema_ids:
        detail["schema_ids"] = sorted(report.schema_ids, key=ordered)
    if run.error is not None:
        detail["error"] = {"class": type(run.error).__name__, "text": without_secrets(words_to_keep(run.error), settings)}
    elif report.errors:
        names = ", ".join(t.table for t in report.errors[:10])
        detail["error"] = {"class": "tables", "text": f"{len(report.errors)} tables failed: {names}"}
    failed = report.errors or (run.error is not None and not run.stopped)
    return {
        "kind": "run",
        "name": run.job,
        "rows": report.rows("bronze"),
        "lag": sum(report.lag.values()) if report.lag else None,
        "seconds": round(run.seconds, 3),
        "status": FAILED if failed else STOPPED if run.stopped else SUCCEEDED,
        "detail": detail,
    }


def _table(entry: TableReport, report: RunReport, settings: Settings) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "table", "layer": entry.layer, "table": entry.table, "game": entry.game}
    if entry.error is not None:
        return row | {"status": FAILED, "detail": {"error": without_secrets(without_quotes(entry.error), settings)}}
    return row | {
        "rows": entry.rows,
        "table_rows": entry.table_rows,
        "table_bytes": entry.table_bytes,
        "delta_version": entry.version,
        "batch": entry.batch,
        "status": "new" if entry.new else "changed",
        "detail": {"inputs": _inputs(entry, report, settings.names)},
    }


def _inputs(entry: TableReport, report: RunReport, names: Names) -> list[dict[str, Any]]:
    """Lineage: what the rows were made from, and up to which batch of bronze.

    Of tables that the same run wrote, the version is in their own row.
    """
    if entry.layer in ("bronze", "quarantine"):
        held = [{"table": names.name_of(QUARANTINE)}] if report.replayed and entry.layer == "bronze" else []
        return [*({"topic": topic} for topic in report.topics), *held]
    if entry.layer == "silver":
        return [{"table": names.name_of(BRONZE), "batch": entry.batch}]
    if is_gold(entry.layer) and entry.game is not None:
        return [{"table": names.name_of(silver_name(entry.game)), "batch": entry.batch}]
    changed = [t.game for t in report.of("gold") if t.error is None]
    return [{"table": names.name_of(gold_name("{game}")), "games": len(changed), "batch": entry.batch}]


def _schema_changes(report: RunReport) -> Iterator[dict[str, Any]]:
    for schema_id, known in sorted(report.new_schemas.items(), key=lambda item: ordered(item[0])):
        subject = dict(zip(("subject", "version"), known, strict=True)) if known is not None else {}
        yield {
            "kind": "schema",
            "layer": "bronze",
            "name": f"schema id {schema_id}",
            "detail": {"schema_id": schema_id, **subject},
        }
    for entry in report.tables:
        types = dict(entry.columns)
        for column in dict.fromkeys(entry.new_columns):
            base, double, kind = column.rpartition("__")
            clash = {"other_kind_of": base, "kind": kind} if double and base in types else {}
            yield {
                "kind": "schema",
                "layer": entry.layer,
                "table": entry.table,
                "game": entry.game,
                "name": column,
                "delta_version": entry.version,
                "status": "column of another kind" if clash else "new column",
                "detail": {"type": types.get(column), **clash},
            }


def _json(detail: object) -> str | None:
    return json.dumps(detail, default=str, ensure_ascii=False) if detail else None
