"""`game-events log`: what the runs did, from the table `event_log`."""

import json
import re
from typing import Annotated, Any

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.arguments import since as since_of
from game_events.cli.common.output import Output, harmless
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables.event_log import KINDS, read_events
from game_events.lakehouse.tables import EVENT_LOG, Lakehouse
from game_events.pipeline.reporting.result import COUNTER_KINDS

#: Longer details are cut in the lines for people; `--json` has all of it.
SHOWN_CHARS = 100
_KINDS = (*KINDS, *COUNTER_KINDS)
_CHOSEN = """
SELECT * FROM events
WHERE ($run IS NULL OR starts_with(run_id, $run)) AND ($kind IS NULL OR kind = $kind)
  AND ($game IS NULL OR game = $game) AND ($table IS NULL OR "table" = $table)
ORDER BY time DESC, run_id, part, kind, layer, "table", name LIMIT $limit
"""


def log(
    run: Annotated[str | None, typer.Option("--run", help="Only this run: its id, or how it begins.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"Only events of this kind: {', '.join(_KINDS)}.")] = None,
    game: Annotated[str | None, typer.Option(help="Only events of this game.")] = None,
    table: Annotated[str | None, typer.Option(help="Only events of this table.")] = None,
    since: Annotated[str | None, typer.Option(help="Only events since then: 30m, 12h, 1d, 2w, or a date.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest events.")] = 50,
    as_json: Json = False,
) -> None:
    """What the runs did, newest first: tables, offsets, rejections, checks, schema changes, who ran them."""
    output = Output(as_json=as_json)
    if kind is not None and kind not in _KINDS:
        raise ConfigurationError(f"--kind: there is no {kind!r}; there are {', '.join(_KINDS)}")
    lakehouse = Lakehouse.of(load_settings())
    events = read_events(lakehouse, since_of(since))
    found = query(events, _CHOSEN, run=run, kind=kind, game=game, table=table, limit=limit)
    for event in found:
        event["detail"] = json.loads(event["detail"]) if event["detail"] else None
        output.say(_line(event))
    if len(found) == limit:
        output.say(f"only {limit} events are shown: --limit shows more")
    elif not found:
        output.say("no such events: every `game-events run` leaves some" if not events.num_rows else "no such events")
    output.result({"table": lakehouse.table(EVENT_LOG).uri, "events": found})


def _line(event: dict[str, Any]) -> str:
    """`time run kind what: status, numbers; detail`."""
    what = " ".join(str(event[c]) for c in ("table", "name") if event[c]) or event["layer"] or ""
    facts = [event["status"]] if event["status"] else []
    facts += [f"{name} {event[name]:,}" for name in ("rows", "table_rows", "lag", "delta_version") if event[name] is not None]
    facts += [f"{event['seconds']:.1f} s"] if event["seconds"] is not None else []
    # Errors of Spark are pages; py4j's begin with a line that says nothing.
    detail = re.sub(r"^(\w+: )?An error occurred while calling \S+ : ", r"\1", " ".join(_words(event["detail"]).split()))
    detail = detail if len(detail) <= SHOWN_CHARS else detail[:SHOWN_CHARS] + "..."
    start = f"{event['time']:%Y-%m-%d %H:%M:%S} {event['run_id'][:8]} {event['kind']:<8} {what}: {', '.join(facts)}"
    return harmless(f"{start}; {detail}" if detail else start)


def _words(detail: dict[str, Any] | None) -> str:
    """The part of a detail that a person looks for first."""
    if not detail:
        return ""
    if "error" in detail:
        error = detail["error"]
        return f"{error['class']}: {error['text']}" if isinstance(error, dict) else str(error)
    if "started_by" in detail:
        by = detail["started_by"]
        return f"{by['user']}@{by['host']}, version {by['version']}"
    return str(detail.get("summary") or json.dumps(detail, ensure_ascii=False))
