"""A job that a command runs: its result, and the tables and lines that people see of it.

How a run that a command made has ended: its result, and the tables and lines that people see.

A job run by a command. Dagster itself is imported when it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from game_events.cli.dagster_home import dagster_home
from game_events.cli.output import Output
from game_events.config.names import Names
from game_events.config.settings import Settings
from game_events.lakehouse.tables import REPORTED, Layer
from game_events.pipeline.reporting.result import RunResult

#: What they are called without the setting.
USUAL = Names()

#: More games than this are summed up in one line.
GAMES_SHOWN = 20


@dataclass(frozen=True)
class JobResult:
    """How it ended; `report`: `RunReport.to_dict`, empty if the run failed before there was one.

    `run_id`: Dagster's; empty: there was nothing to do, so there is no run.
    """

    run_id: str
    success: bool
    report: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def show_run(output: Output, report: dict[str, Any], words: Names = USUAL) -> None:
    """Rows by layer and game, throughput, lag, where the tables are."""
    for notice in report["notices"]:
        output.say(notice)
    if report["postponed"]:
        output.say(f"not due yet: {', '.join(report['postponed'])} (--ignore-intervals refreshes them at once)")
    if "files" in report:
        output.say("files: " + ", ".join(f"{count:,} {what}" for what, count in report["files"].items()))
    if not report["tables"] and not report["errors"]:
        output.say("nothing new: every table is up to date, and none was written")
        show_counters(output, report)
        return
    rows, seconds = report["rows"], report["seconds"]
    lines = []
    for layer in (*REPORTED, *(own for own in rows if own not in REPORTED)):
        took = seconds.get(Layer.BRONZE if layer == Layer.QUARANTINE else layer, 0.0)
        rate = f"{rows[layer] / took:,.0f}/s" if took and rows[layer] and layer != Layer.QUARANTINE else "-"
        lines.append((layer, rows[layer], f"{took:.1f} s" if layer in seconds else "-", rate))
    output.table("rows by layer (gold and unified: all rows of what changed)", ("layer", "rows", "took", "rate"), lines)
    games = report["games"]
    if games:
        shown = [(g, counts.get(Layer.SILVER, 0), counts.get(Layer.GOLD, 0)) for g, counts in sorted(games.items())]
        shown, rest = shown[:GAMES_SHOWN], shown[GAMES_SHOWN:]
        if rest:
            shown.append((f"{len(rest)} more", sum(s for _, s, _ in rest), sum(g for _, _, g in rest)))
        keys = "players" if words.keys == USUAL.keys else words.keys
        output.table(f"by {words.entity}", (words.entity, "silver rows added", f"{keys} in gold"), shown)
    show_counters(output, report)
    if report["rules"]:
        show_rules(output, report, words)
    output.say(f"lag: {report['lag']:,} records; schema ids seen: {', '.join(map(str, report['schema_ids'])) or '-'}")
    for error in report["errors"]:
        output.say(f"FAILED {error['table']}: {error['error']}")


def show_counters(output: Output, report: dict[str, Any]) -> None:
    """Counters that are printed unless they are 0: those by name, then the others with their meaning."""
    printed = {f.name: f.metadata["printed"] for f in fields(RunResult) if f.metadata["printed"] is not None and report[f.name]}
    for name, meaning in sorted(printed.items(), key=lambda item: item[1] != ""):
        value, title = report[name], name.replace("_", " ")
        counts = ", ".join(f"{why} {n:,}" for why, n in sorted(value.items())) if not meaning else f"{value:,} {meaning}"
        output.say(f"{title}: {counts}")


def show_rules(output: Output, report: dict[str, Any], words: Names = USUAL) -> None:
    """Each rule that was violated: by how many rows of how many games, and what became of them."""
    rules = report["rules"]
    violated = [
        (r["layer"], r["rule"], r["action"], r["rows"], r["violated"], len(r["violated_by_game"]))
        for r in rules
        if r["violated"]
    ]
    if not violated:
        output.say(f"rules: all {len(rules)} hold")
        return
    output.table("rules that were violated", ("layer", "rule", "action", "rows", "violated", words.entities), violated)
    out = {"dropped": report["dropped"], "in quarantine": report["quarantined_by_rules"]}
    output.say("rows kept out of silver by rules: " + ", ".join(f"{what} {rows:,}" for what, rows in out.items()))


def finish(output: Output, result: JobResult, failed: str = "") -> None:
    """End a command with a run's result: the error after the text `failed`, the JSON object, exit code 1 after a failure."""
    if failed and result.error:
        output.say(f"{failed}: {result.error}")
    # The report's own `success` is about its tables: a run that broke off may have none that failed.
    body = {**result.report, "success": result.success, "run_id": result.run_id or None, "error": result.error}
    output.result(body, success=result.success)


def run_job(settings: Settings, name: str, config: Mapping[str, object] | None = None, place: str | None = None) -> JobResult:
    """Run a job of one op, with its configuration; whatever happens to it is in the result and in Dagster's event log.

    `place`: a folder or prefix that the command line names for the job, which may use it.
    """
    home = dagster_home(settings)
    from game_events.cli.dagster_run import execute  # imports Dagster and the whole graph: 2 s

    return execute(settings, home, name, config or {}, place)
