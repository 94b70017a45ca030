"""`game-events schema`: what a version of the topic's schema holds, what it changed; and what a table's columns are."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import typer
from typer.core import TyperGroup

from game_events.cli.common.arguments import Json, existing_table
from game_events.cli.common.output import Output
from game_events.config.settings import Settings, load_settings
from game_events.decoding.core.column_map import type_name
from game_events.decoding.core.kept_columns import kept_columns
from game_events.errors import ConfigurationError
from game_events.lakehouse.descriptions import comments_of, owners_of, tags_of
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.column_origins import ColumnOrigin, origins
from game_events.pipeline.schemas.history import SchemaHistory
from game_events.schema_registry import SchemaRegistry
from game_events.sources.factory import subjects


class SchemaGroup(TyperGroup):
    """`game-events schema TABLE` means `game-events schema columns TABLE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of typer's own, which is not public
        """Put the word in that was left out."""
        known = {*self.commands, "--help"}
        if args and args[0] not in known and not args[0].startswith("-"):
            args = ["columns", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    help="The versions of the topic's schema and the columns they become; with a table's name: its columns.",
    cls=SchemaGroup,
    no_args_is_help=True,
)

Subject = Annotated[str | None, typer.Option("--subject", help="Default: <topic>-value, if there is one topic.")]


def _history(subject: str | None) -> SchemaHistory:
    settings = load_settings()
    return SchemaHistory(
        SchemaRegistry(settings), Lakehouse.of(settings), subject or _only_subject(settings), kept_columns(settings)
    )


def _only_subject(settings: Settings) -> str:
    found = subjects(settings)
    if len(found) != 1:
        raise ConfigurationError(f"there are {len(found)} subjects: choose one with --subject ({', '.join(found)})")
    return found[0]


@app.command("show")
def show(
    version: Annotated[int | None, typer.Argument(help="Version of the subject; default: the newest.")] = None,
    subject: Subject = None,
    as_json: Json = False,
) -> None:
    """Every field of a version, and the column of bronze and silver that it lands in."""
    output = Output(as_json=as_json)
    history = _history(subject)
    chosen = history.version(version)
    fields = history.fields(chosen)
    occurred = history.occurred()
    for message in dict.fromkeys(f.message for f in fields):
        rows = [(f.names, f.declared, f.column, type_name(f.field.type, members=False)) for f in fields if f.message == message]
        output.table(
            f"{message} (version {chosen.version}, schema id {chosen.schema_id})"
            + ("" if message in occurred else ": no record of it yet; its columns would be"),
            ("field", "type", "column", "stored as"),
            rows,
        )
    left_out = history.left_out(chosen)
    if left_out:
        output.say(left_out)
    output.result(
        {
            "subject": history.subject,
            "left_out": left_out,
            "version": chosen.version,
            "schema_id": chosen.schema_id,
            "fields": [
                {
                    "message": f.message,
                    "field": f.names,
                    "type": f.declared,
                    "column": f.column,
                    "stored_as": type_name(f.field.type, members=False),
                    "occurred": f.message in occurred,
                }
                for f in fields
            ],
        }
    )


@app.command("diff")
def diff(
    old: Annotated[int | None, typer.Argument(help="Earlier version; default: the one before the later one.")] = None,
    new: Annotated[int | None, typer.Argument(help="Later version; default: the newest.")] = None,
    subject: Subject = None,
    as_json: Json = False,
) -> None:
    """What a version changed, field by field, and what becomes of the columns."""
    output = Output(as_json=as_json)
    history = _history(subject)
    later = history.version(new)
    earlier = history.version(old) if old is not None else None
    before = [v for v in history.versions() if v.version < later.version]
    if earlier is None:
        earlier = before[-1] if before else later
    changes = history.changes(earlier, later)
    if earlier == later:
        first = "; it is the first one" if not before else ""
        output.say(f"{history.subject}: version {later.version} (id {later.schema_id}): nothing to compare it with{first}")
    else:
        output.say(
            f"{history.subject}: version {earlier.version} (id {earlier.schema_id}) -> {later.version} (id {later.schema_id})"
        )
    for change in changes:
        name = f"{change.message}.{change.field}" if change.field else change.message
        declared = " -> ".join(filter(None, (change.before, change.after)))
        output.say(f"  {change.kind}: {name} ({declared}): {change.effect}")
    if not changes and earlier != later:
        output.say("  nothing changed in fields or enums")
    left_out = history.left_out(earlier, later)
    if left_out:
        output.say(left_out)
    output.result(
        {
            "subject": history.subject,
            "left_out": left_out,
            "old": {"version": earlier.version, "schema_id": earlier.schema_id},
            "new": {"version": later.version, "schema_id": later.schema_id},
            "changes": [c.to_dict() for c in changes],
        }
    )


@app.command("columns")
def columns(
    table: Annotated[str, typer.Argument(help="A table's name, as `game-events tables` lists it.")],
    as_json: Json = False,
) -> None:
    """A table's columns: type, comment, the fields they come from, and the first schema that had them."""
    output = Output(as_json=as_json)
    lakehouse = Lakehouse.of(load_settings())
    chosen, handle = existing_table(lakehouse, table)
    schema = pa.schema(handle.schema())
    comments = comments_of(schema)
    by_column: dict[str, list[ColumnOrigin]] = {}
    for origin in origins(lakehouse) if chosen.key.startswith(("bronze_", "silver_")) else []:
        by_column.setdefault(origin.column, []).append(origin)
    nested = {
        name: [o for column, found in by_column.items() if column.startswith(f"{name}.") for o in found]
        for name in schema.names
    }
    body = []
    for item in schema:
        found = by_column.get(item.name, [])
        body.append(
            {
                "column": item.name,
                "type": type_name(item.type, members=False),
                "comment": comments.get(item.name, ""),
                "fields": [_origin(o) for o in found],
                "nested": [
                    {"column": o.column, "type": type_name(_member(schema, o.column), members=False), "comment": o.comment}
                    | _origin(o)
                    for o in nested[item.name]
                ],
            }
        )
    metadata = handle.metadata()
    output.say(metadata.description or chosen.name)
    lines: list[tuple[object, ...]] = []
    for item in schema:
        first = by_column.get(item.name, [])
        lines.append(
            (item.name, type_name(item.type, members=False), _names(first), _first(first), comments.get(item.name, ""))
        )
        lines += [
            (f"  {o.column}", type_name(_member(schema, o.column), members=False), _names([o]), _first([o]), o.comment)
            for o in nested[item.name]
        ]
    output.table(chosen.uri, ("column", "type", "field", "since", "comment"), lines)
    output.result(
        {
            "table": chosen.name,
            "location": chosen.uri,
            "description": metadata.description,
            "owners": owners_of(handle),
            "tags": tags_of(handle),
            "columns": body,
        }
    )


def _member(schema: pa.Schema, path: str) -> pa.DataType:
    """The type of a nested field, as it is stored: `rows.name` is that of `name` in each element of `rows`."""
    column, *steps = path.split(".")
    kind = schema.field(column).type
    for step in steps:
        while not pa.types.is_struct(kind):
            kind = kind.item_type if pa.types.is_map(kind) else kind.value_type
        kind = kind.field(step).type
    return kind


def _origin(origin: ColumnOrigin) -> dict[str, object]:
    return {
        "message": origin.message,
        "field": origin.field,
        "declared": origin.declared,
        "first_schema": origin.first_schema,
        "first_version": origin.first_version,
    }


def _names(found: list[ColumnOrigin]) -> str:
    return ", ".join(dict.fromkeys(f"{o.message.rpartition('.')[2]}.{o.field}" for o in found))


def _first(found: list[ColumnOrigin]) -> str:
    if not found:
        return ""
    first = found[0]
    return f"version {first.first_version}" if first.first_version is not None else f"schema id {first.first_schema}"
