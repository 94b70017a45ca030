"""`game-events quarantine`: what could not be decoded or is rejected by rules, why, and trying it again."""

from typing import Annotated, Any

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output, harmless
from game_events.cli.common.run_job import run_job
from game_events.cli.common.summary import finish, show_run
from game_events.config.settings import load_settings
from game_events.decoding.core.reasons import Reason
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.duckdb_connection import connect, records
from game_events.lakehouse.event_columns import SCHEMA_COLUMNS
from game_events.lakehouse.tables import QUARANTINE, Lakehouse
from game_events.pipeline.reprocessing.selection import replay_selection

app = typer.Typer(
    help="Rows that are in no other table: list them, and replay them.", no_args_is_help=True, add_completion=False
)

Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only this reason, or this rule; may be repeated.")]
SchemaIds = Annotated[list[str] | None, typer.Option("--schema-id", help="Only rows of this schema id or GUID.")]
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
SELECT concat(_kafka_topic, '[', _kafka_partition, ']@', _kafka_offset) AS record, layer, reason, detail, game,
  coalesce(schema_id, '-') AS schema_id, quarantined_at, run_id,
  replayed_table, replayed_batch, replayed_at
FROM chosen ORDER BY quarantined_at DESC, _kafka_partition, _kafka_offset DESC LIMIT $rows
"""


@app.command("list")
def list_rows(reason: Reasons = None, schema_id: SchemaIds = None, rows: Rows = 0, as_json: Json = False) -> None:
    """Count the rows by reason (or rule) and schema id: how many, how many were replayed, since when. No value is shown."""
    output = Output(as_json=as_json)
    chosen = replay_selection(reason or [], schema_id or [])
    table = Lakehouse.of(load_settings()).table(QUARANTINE)
    handle = table.open_to_read()
    groups: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    if handle is not None:
        found = read_arrow(table, handle, _COLUMNS)
        for name in set(_COLUMNS) - set(found.column_names):  # a table of an earlier version
            found = found.append_column(name, [[None] * found.num_rows])
        with connect(held=found) as connection:
            connection.execute(
                "CREATE TEMP TABLE chosen AS SELECT *, coalesce(_schema_id::VARCHAR, _schema_guid) AS schema_id FROM held "
                "WHERE (len($reasons) = 0 OR list_contains($reasons, reason)) "
                "AND (len($ids) = 0 OR list_contains($ids, schema_id))",
                {"reasons": sorted(chosen.reasons), "ids": sorted(map(str, chosen.schema_ids))},
            )
            groups = records(connection.execute(_GROUPS))
            single = records(connection.execute(_SINGLE, {"rows": rows}))
    if groups:
        columns = ("layer", "reason", "schema_id", "rows", "replayed")
        output.table(f"{table.name}: rows by reason and schema id", columns, [[g[c] for c in columns] for g in groups])
        for why, detail in {g["reason"]: g["example"] for g in groups}.items():
            output.say(f"{why}, for example: {harmless(str(detail))}")
        if any(g["reason"] not in FOR_EVER and g["rows"] > g["replayed"] for g in groups):
            output.say("replay what passes by now: `game-events quarantine replay [--reason R] [--schema-id I]`")
    else:
        output.say("no such rows in quarantine")
    for row in single:
        what = "replayed as batch" if row["replayed_table"] is not None else "not in bronze any more as of batch"
        after = f", {what} {row['replayed_batch']}" if row["replayed_batch"] is not None else ""
        output.say(f"{row['record']} {row['reason']} (schema {row['schema_id']}){after}: {harmless(str(row['detail']))}")
    waiting = sum(g["rows"] - g["replayed"] for g in groups)
    output.result({"table": table.uri, "waiting": waiting, "groups": groups, "rows": single})


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
