"""Commands that look, without Spark and Dagster.

`game-events tables`: what is in the lakehouse, from the tables' logs alone.

`game-events history`: the versions of a table, and what made each of them.

`game-events log`: what the runs did, from the table `event_log`.
"""

import json
import re
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from deltalake import DeltaTable

from game_events.cli.output import Json, Output, harmless
from game_events.cli.output import since as since_of
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Version, versions
from game_events.lakehouse.commits.versions import readable_versions
from game_events.lakehouse.data.columns import MESSAGE_TYPE, owners_of, tags_of
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables import KINDS, read_events
from game_events.lakehouse.tables import EVENT_LOG, Lakehouse, Table, add_actions, existing_table, names_of, paths
from game_events.pipeline.reporting.result import COUNTER_KINDS


def tables(
    types: Annotated[bool, typer.Option("--types", help="Also the rows by message type; this reads a column of each.")] = False,
    as_json: Json = False,
) -> None:
    """List the tables: rows, Delta version, files, size, columns, owners; `game-events schema TABLE` shows one's columns."""
    output = Output(as_json=as_json)
    lakehouse = Lakehouse.of(load_settings())
    entries = []
    for name in lakehouse.names():
        table = lakehouse.table(name)
        handle = table.open_to_read()
        if handle is None:
            continue
        entry = _entry(table, handle)
        if types:
            entry["types"] = _rows_by_type(table, handle)
        entries.append(entry)
    if entries:
        columns = ["table", "rows", "version", "files", "bytes", "columns"]
        columns += ["owners"] if any(entry["owners"] for entry in entries) else []
        rows = [[", ".join(v) if isinstance(v, list) else v for v in map(entry.get, columns)] for entry in entries]
        output.table(lakehouse.root, columns, rows)
        if types:
            by_type = [[entry["table"], name, rows] for entry in entries for name, rows in entry["types"].items()]
            output.table("rows by message type", ["table", "message type", "rows"], by_type)
    else:
        output.say(f"no tables below {lakehouse.root}: `game-events run` makes them (GAME_EVENTS_LAKEHOUSE names the place)")
    output.result({"root": lakehouse.root, "tables": entries})


def _entry(table: Table, handle: DeltaTable) -> dict[str, Any]:
    """What the log of a table says about it."""
    actions = add_actions(handle)
    counts = actions.column("num_records")
    return {
        "table": table.name,
        # Not known where a file is gone or damaged and has no statistics.
        "rows": None if counts.null_count else int(pc.sum(counts).as_py() or 0),
        "version": handle.version(),
        "files": actions.num_rows,
        "bytes": int(pc.sum(actions.column("size_bytes")).as_py() or 0),
        "columns": len(handle.schema().fields),
        "owners": owners_of(handle),
        "tags": tags_of(handle),
        "description": handle.metadata().description,
        "location": table.uri,
    }


def _rows_by_type(table: Table, handle: DeltaTable) -> dict[str, int]:
    """Message type -> rows, most first; ``: those without one. Empty for a table without such a column."""
    if MESSAGE_TYPE not in names_of(handle):
        return {}
    counts = Counter[str]()
    for rows in read_parts(table, pa.schema([(MESSAGE_TYPE, pa.string())]), paths(handle)):
        for found in pc.value_counts(rows.column(MESSAGE_TYPE).combine_chunks()).to_pylist():
            counts[found["values"] or ""] += found["counts"]
    return dict(counts.most_common())


def history(
    table: Annotated[str, typer.Argument(help="A table's name, as `game-events tables` lists it.")],
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest versions.")] = 20,
    as_json: Json = False,
) -> None:
    """A table's versions that can be read, newest first: when, what kind, rows, batch, offsets, run; maintenance too."""
    output = Output(as_json=as_json)
    chosen, handle = existing_table(Lakehouse.of(load_settings()), table)
    readable = [version for version in readable_versions(chosen) if version <= handle.version()]
    entries = list(versions(chosen, reversed(readable[-limit:])))
    output.say(chosen.uri)
    for entry in entries:
        output.say(_line(entry))
    if len(readable) > limit:
        output.say(f"only {limit} of {len(readable):,} versions that can be read are shown: --limit shows more")
    elif len(entries) <= handle.version():
        output.say(f"{handle.version() + 1 - len(entries):,} older versions cannot be read any more (docs/maintenance.md)")
    output.result({"table": chosen.name, "location": chosen.uri, "versions": [asdict(entry) for entry in entries]})


def _line(entry: Version) -> str:
    """`version time kind: rows, files, batch, run, offsets`: what there is of it."""
    facts = []
    if entry.files_added:
        facts.append(f"{entry.added:,} rows in {entry.files_added:,} files added" if entry.added is not None else "files added")
    if entry.files_removed:
        rows = f" with {entry.removed:,} rows" if entry.removed is not None else ""
        facts.append(f"{entry.files_removed:,} files{rows} removed")
    facts += [f"batch {entry.batch}"] if entry.batch is not None else []
    facts += [f"run {entry.run_id[:8]}"] if entry.run_id else []
    facts += [entry.offsets] if entry.offsets else []
    start = f"{entry.version:>6} {entry.time:%Y-%m-%d %H:%M:%S} {entry.kind}"
    return f"{start}: {', '.join(facts)}" if facts else start


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
    chosen = query(events, _CHOSEN, run=run, kind=kind, game=game, table=table, limit=limit)
    for event in chosen:
        event["detail"] = json.loads(event["detail"]) if event["detail"] else None
        output.say(_run_line(event))
    if len(chosen) == limit:
        output.say(f"only {limit} events are shown: --limit shows more")
    elif not chosen:
        output.say("no such events: every `game-events run` leaves some" if not events.num_rows else "no such events")
    output.result({"table": lakehouse.table(EVENT_LOG).uri, "events": chosen})


def _run_line(event: dict[str, Any]) -> str:
    """`time run kind what: status, numbers; detail`."""
    what = " ".join(str(event[c]) for c in ("table", "name") if event[c]) or event["layer"] or ""
    start = f"{event['time']:%Y-%m-%d %H:%M:%S} {event['run_id'][:8]} {event['kind']:<8} {what}: {_facts(event)}"
    # Errors of Spark are pages; py4j's begin with a line that says nothing.
    detail = re.sub(r"^(\w+: )?An error occurred while calling \S+ : ", r"\1", " ".join(_words(event["detail"]).split()))
    if len(detail) > SHOWN_CHARS:
        detail = detail[:SHOWN_CHARS] + "..."
    return harmless(f"{start}; {detail}" if detail else start)


def _facts(event: dict[str, Any]) -> str:
    """An event's status and numbers: those that there are."""
    facts = [event["status"]] if event["status"] else []
    facts += [f"{n} {event[n]:,}" for n in ("rows", "table_rows", "lag", "delta_version") if event[n] is not None]
    facts += [f"{event['seconds']:.1f} s"] if event["seconds"] is not None else []
    return ", ".join(facts)


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
