"""Commands that change what is there: quarantine, redecode, maintain, migrate.

`game-events quarantine`: what could not be decoded or is rejected by rules, why, and trying it again.

`game-events redecode`: bronze's decoded columns, rebuilt from the raw values it keeps.

`game-events maintain`: small files joined, old ones deleted, logs shortened.

`game-events migrate`: tables of game_events 0.1 get today's names.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from game_events.cli.dagster_run import finish, run_job, show_run
from game_events.cli.output import Json, Output, harmless, words
from game_events.config.settings import load_settings
from game_events.config.sources.several import registry_names
from game_events.decoding.frame import Reason
from game_events.lakehouse.commits.migration import Change, apply, changes
from game_events.lakehouse.data.columns import SCHEMA_COLUMNS, SOURCE, ids_of_rows, is_sourced, places
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.duckdb_connection import connect, records
from game_events.lakehouse.tables import QUARANTINE, Lakehouse, Table
from game_events.pipeline.replay_selection import ReplaySelection, replay_selection

app = typer.Typer(
    help="Rows that are in no other table: list them, and replay them.", no_args_is_help=True, add_completion=False
)

Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only this reason, or this rule; may be repeated.")]

SchemaIds = Annotated[
    list[str] | None, typer.Option("--schema-id", help="Only rows of this schema id or GUID; us/7: of the source us.")
]

Rows = Annotated[int, typer.Option("--rows", min=0, help="Show so many single rows, newest first, with their coordinates.")]

#: Nothing that the registry or the rules say one day makes rows of these.
FOR_EVER = frozenset({Reason.TOMBSTONE, Reason.TOO_SHORT})
_COLUMNS = [
    "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", *SCHEMA_COLUMNS,
    "layer", "reason", "detail", "quarantined_at", "run_id", "replayed_table", "replayed_batch", "replayed_at", "game",
]  # fmt: skip

_GROUPS = """
SELECT layer, reason, coalesce(schema_id, '-') AS schema_id, count(*) AS rows,
  count(replayed_batch) AS replayed, any_value(detail) AS example, min(quarantined_at) AS first, max(quarantined_at) AS last
FROM chosen GROUP BY ALL ORDER BY rows DESC, layer, reason, schema_id
"""

_SINGLE = """
SELECT concat(place, '[', _kafka_partition, ']@', _kafka_offset) AS record, layer, reason, detail, game,
  coalesce(schema_id, '-') AS schema_id, quarantined_at, run_id,
  replayed_table, replayed_batch, replayed_at
FROM chosen ORDER BY quarantined_at DESC, _kafka_partition, _kafka_offset DESC LIMIT $rows
"""


@app.command("list")
def list_rows(reason: Reasons = None, schema_id: SchemaIds = None, rows: Rows = 0, as_json: Json = False) -> None:
    """Count the rows by reason (or rule) and schema id: how many, how many were replayed, since when. No value is shown."""
    output = Output(as_json=as_json)
    chosen = replay_selection(reason or [], schema_id or [])
    settings = load_settings()
    table = Lakehouse.of(settings).table(QUARANTINE)
    groups, single = _rows_in(table, chosen, rows, registry_names(settings))
    if groups:
        _show_groups(output, table, groups)
    else:
        output.say("no such rows in quarantine")
    for row in single:
        output.say(_line(row))
    waiting = sum(group["rows"] - group["replayed"] for group in groups)
    output.result({"table": table.uri, "waiting": waiting, "groups": groups, "rows": single})


def _rows_in(
    table: Table, chosen: ReplaySelection, limit: int, registries: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The chosen rows of quarantine: counted by reason and schema, and the newest of them one by one.

    `registries`: source -> name of its registry in ids of schemas.
    """
    handle = table.open_to_read()
    if handle is None:
        return [], []
    held = read_arrow(table, handle, [*_COLUMNS, *([SOURCE] if is_sourced(handle) else [])])
    held = held.append_column("place", places(held)).append_column("schema_id", ids_of_rows(held, registries))
    with connect(held=held) as connection:
        connection.execute(
            "CREATE TEMP TABLE chosen AS SELECT * FROM held "
            "WHERE (len($reasons) = 0 OR list_contains($reasons, reason)) "
            "AND (len($ids) = 0 OR list_contains($ids, schema_id))",
            {"reasons": sorted(chosen.reasons), "ids": sorted(map(str, chosen.schema_ids))},
        )
        return records(connection.execute(_GROUPS)), records(connection.execute(_SINGLE, {"rows": limit}))


def _show_groups(output: Output, table: Table, groups: list[dict[str, Any]]) -> None:
    columns = ("layer", "reason", "schema_id", "rows", "replayed")
    lines = [[group[column] for column in columns] for group in groups]
    output.table(f"{table.name}: rows by reason and schema id", columns, lines)
    examples = {group["reason"]: group["example"] for group in groups}
    for reason, detail in examples.items():
        output.say(f"{reason}, for example: {harmless(str(detail))}")
    if any(group["reason"] not in FOR_EVER and group["rows"] > group["replayed"] for group in groups):
        output.say("replay what passes by now: `game-events quarantine replay [--reason R] [--schema-id I]`")


def _line(row: dict[str, Any]) -> str:
    after = ""
    if row["replayed_batch"] is not None:
        what = "replayed as batch" if row["replayed_table"] is not None else "not in bronze any more as of batch"
        after = f", {what} {row['replayed_batch']}"
    return f"{row['record']} {row['reason']} (schema {row['schema_id']}){after}: {harmless(str(row['detail']))}"


@app.command("replay")
def replay(reason: Reasons = None, schema_id: SchemaIds = None, as_json: Json = False) -> None:
    """Try rows again with what the registry knows and the rules say now; what passes reaches silver and gold once."""
    output = Output(as_json=as_json)
    settings = load_settings()
    replay_selection(reason or [], schema_id or [])  # what is wrong with it is said before Spark starts
    with output.working("replaying"):
        result = run_job(settings, "replay", {"reasons": reason or [], "schema_ids": schema_id or []})
    if result.report:
        left = result.report["left_by_reason"]
        show_run(output, result.report, settings.names)
        if not result.report["replayed_rows"] and not result.report["readmitted"]:
            output.say("no row can be decoded, or satisfies the rules, that could or did not before")
        if left:
            output.say("still not decodable: " + ", ".join(f"{why} {n:,}" for why, n in sorted(left.items())))
    finish(output, result, "the replay failed")


Downstream = Annotated[
    bool, typer.Option("--downstream", help="Afterwards replace silver by what bronze has now; gold and unified follow.")
]


def redecode(downstream: Downstream = False, as_json: Json = False) -> None:
    """Decode every row of bronze again, without Kafka, in one atomic commit; rows, batches and progress stay."""
    output = Output(as_json=as_json)
    settings = load_settings()
    with output.working("redecoding"):
        result = run_job(settings, "redecode", {"refresh_silver_and_gold": downstream})
    if result.report:
        show_run(output, result.report, settings.names)
        new = result.report["new_columns"]
        kept = result.report["kept_by_reason"]
        output.say(f"redecoded: {result.report['redecoded_rows']:,} rows; new columns: {', '.join(new) or 'none'}")
        if kept:
            output.say("rows that keep the columns they had: " + ", ".join(f"{why} {n:,}" for why, n in sorted(kept.items())))
        others = result.report["undecoded_by_type"]
        if others:
            output.say("of types that are not selected: " + ", ".join(f"{name} {n:,}" for name, n in sorted(others.items())))
        if not downstream:
            output.say("silver and gold keep what they have; `--downstream` takes the new columns over")
    finish(output, result, "redecode failed")


Tables = Annotated[list[str] | None, typer.Option("--table", help="Only these tables (comma separated, or repeated).")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Count what would be done, and do nothing.")]

Layout = Annotated[
    bool, typer.Option("--layout", help="Until every file is as LAYOUT and STATISTICS_COLUMNS say: old tables, too.")
]

COLUMNS = ("table", "joined", "into", "renewed", "laid_out", "replaced", "orphans", "waiting", "files")
#: Those of them that count what maintenance does.
WORK = ("joined", "renewed", "laid_out", "replaced", "orphans")


def maintain(table: Tables = None, layout: Layout = False, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Join small files, renew outdated ones, delete unneeded ones and rows by age, shorten logs, whoever is at work."""
    output = Output(as_json=as_json)
    with output.working("maintenance"):
        result = run_job(load_settings(), "maintain", {"tables": words(table), "dry_run": dry_run, "layout": layout})
    if result.report:
        _show_maintenance(output, result.report.get("maintenance", {}), dry_run=dry_run)
    finish(output, result, "maintenance failed")


def _show_maintenance(output: Output, tables: dict[str, dict[str, Any]], *, dry_run: bool) -> None:
    busy = [entry for entry in tables.values() if any(entry[what] for what in WORK)]
    if busy:
        title = "files that would be joined, renewed or deleted" if dry_run else "files joined, renewed and deleted"
        output.table(title, COLUMNS, [[entry[column] for column in COLUMNS] for entry in busy])
    else:
        output.say(f"nothing to do for {len(tables)} tables")
    _show_expired(output, tables, dry_run=dry_run)
    _show_left(output, tables)


def _show_expired(output: Output, tables: dict[str, dict[str, Any]], *, dry_run: bool) -> None:
    """Rows older than their limit, if there are any."""
    older = [entry for entry in tables.values() if entry["expired"] or entry["expired_later"]]
    if older:
        title = "rows that would be removed by age" if dry_run else "rows removed by age"
        columns = ("table", "rows", "bytes", "older rows that stay")
        names = ("table", "expired", "expired_bytes", "expired_later")
        output.table(title, columns, [[entry[name] for name in names] for entry in older])
    if any(entry["expired_later"] for entry in older):
        output.say("older rows stay until what is made of them has them, and an export (docs/maintenance.md)")
    raw = sum(entry["raw_values"] for entry in tables.values())
    if raw:
        output.say(f"{raw:,} raw values {'would be' if dry_run else 'were'} removed by age, not their rows")


def _show_left(output: Output, tables: dict[str, dict[str, Any]]) -> None:
    """What maintenance has not done, and why."""
    waiting = sum(entry["waiting"] for entry in tables.values())
    if waiting:
        output.say(
            f"{waiting:,} replaced files stay for the time, as older versions have them (REPLACED_FILES_H, "
            "DERIVED_REPLACED_FILES_H)"
        )
    outdated = sum(entry["outdated"] for entry in tables.values())
    if outdated:
        output.say(f"{outdated:,} files of an earlier release are left for the next time (docs/maintenance.md)")
    spread = sum(entry["spread"] for entry in tables.values())
    if spread:
        output.say(f"{spread:,} files are not as LAYOUT says yet: `game-events maintain --layout` changes all of them")
    for entry in tables.values():
        if entry["skipped"]:
            output.say(f"{entry['table']}: left for the next time: {entry['skipped']}")


Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this nothing is changed.")]


def migrate(apply_it: Apply = False, as_json: Json = False) -> None:
    """Give the tables of a lakehouse of game_events 0.1 today's names; no row changes. Killed, it is run again."""
    output = Output(as_json=as_json)
    lakehouse = Lakehouse.of(load_settings())
    planned = list(changes(lakehouse))
    for change in planned if apply_it else ():
        apply(lakehouse, change)
        output.say(f"{change.table.name}: done")
    if not planned:
        output.say(f"{lakehouse.root}: nothing to migrate")
    elif not apply_it:
        columns = ("table", "new transaction ids", "new name")
        lines = [[c.table.name, _ids_in_words(c), c.becomes.name if c.becomes else "-"] for c in planned]
        output.table(f"{lakehouse.root}: what would be changed; stop all runs, then add --apply", columns, lines)
    tables = [{"table": c.table.name, "ids": c.ids, "becomes": c.becomes.name if c.becomes else None} for c in planned]
    output.result({"applied": apply_it, "tables": tables})


def _ids_in_words(change: Change) -> str:
    """New transaction ids, without what they are by: of quarantine, they are by game."""
    return ", ".join(sorted({new.partition(":")[0].partition("/")[0] for new in change.ids.values()})) or "-"
