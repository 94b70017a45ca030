"""The table at the end of a run."""

from __future__ import annotations

from typing import Any

from game_events.cli.common.output import Output
from game_events.config.naming import Names
from game_events.lakehouse.layers import REPORTED, Layer

#: What they are called without the setting.
USUAL = Names()
#: More games than this are summed up in one line.
GAMES_SHOWN = 20
#: Counts that are seldom there, and what they mean.
_SINGLE = {
    "suppressed": "records of forgotten gamers are in no table",
    "replayed": "rows of quarantine are in bronze now",
    "readmitted": "rows of quarantine satisfy the rules and are in silver now",
}


def show_run(output: Output, report: dict[str, Any], words: Names = USUAL) -> None:
    """Rows by layer and game, throughput, lag, where the tables are."""
    for notice in report["notices"]:
        output.say(notice)
    if report["postponed"]:
        output.say(f"not due yet: {', '.join(report['postponed'])} (--ignore-intervals refreshes them at once)")
    show_files(output, report)
    if not report["tables"] and not report["errors"]:
        output.say("nothing new: every table is up to date, and none was written")
        return
    rows, seconds = report["rows"], report["seconds"]
    lines = []
    for layer in (*REPORTED, *(own for own in rows if own not in REPORTED)):
        took = seconds.get(Layer.BRONZE if layer == Layer.QUARANTINE else layer, 0.0)
        rate = f"{rows[layer] / took:,.0f}/s" if took and rows[layer] and layer != Layer.QUARANTINE else "-"
        lines.append((layer, rows[layer], f"{took:.1f} s" if layer in seconds else "-", rate))
    output.table("rows by layer (gold and unified: rows of the tables that changed)", ("layer", "rows", "took", "rate"), lines)
    games = report["games"]
    if games:
        shown = [(g, counts.get(Layer.SILVER, 0), counts.get(Layer.GOLD, 0)) for g, counts in sorted(games.items())]
        rest = shown[GAMES_SHOWN:]
        shown = shown[:GAMES_SHOWN]
        if rest:
            shown.append((f"{len(rest)} more", sum(s for _, s, _ in rest), sum(g for _, _, g in rest)))
        keys = "players" if words.keys == USUAL.keys else words.keys
        output.table(f"by {words.entity}", (words.entity, "silver rows added", f"{keys} in gold"), shown)
    for what in ("rejected", "other_types", "unrouted"):
        if report[what]:
            output.say(f"{what.replace('_', ' ')}: " + ", ".join(f"{why} {n:,}" for why, n in sorted(report[what].items())))
    if report["rules"]:
        show_rules(output, report, words)
    for what, means in _SINGLE.items():
        if report[what]:
            output.say(f"{what}: {report[what]:,} {means}")
    output.say(f"lag: {report['lag']:,} records; schema ids seen: {', '.join(map(str, report['schema_ids'])) or '-'}")
    for error in report["errors"]:
        output.say(f"FAILED {error['table']}: {error['error']}")


def show_files(output: Output, report: dict[str, Any]) -> None:
    """Of files as the source: how many were taken in, have changed since, wait until they are finished."""
    if "files" in report:
        output.say("files: " + ", ".join(f"{count:,} {what}" for what, count in report["files"].items()))


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
