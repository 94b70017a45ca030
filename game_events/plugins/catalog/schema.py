"""`game-events schema`: what a version of the topic's schema holds, what it changed; and what a table's columns are."""

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer
from typer.core import TyperGroup

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.decoding.columns import kept_columns, type_name
from game_events.errors import ConfigurationError
from game_events.lakehouse.data.columns import comments_of, owners_of, tags_of
from game_events.lakehouse.tables import Lakehouse, existing_table
from game_events.plugins.catalog.schema_history import NOTHING, Change, ColumnOrigin, SchemaHistory, origins, registry_of
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
    add_completion=False,
)

Subject = Annotated[str | None, typer.Option("--subject", help="Default: <topic>-value, if there is one topic.")]


def _history(subject: str | None) -> SchemaHistory:
    settings = load_settings()
    named = [subject] if subject else subjects(settings)
    if len(named) != 1:
        raise ConfigurationError(f"there are {len(named)} subjects: choose one with --subject ({', '.join(named)})")
    return SchemaHistory(registry_of(settings), Lakehouse.of(settings), named[0], kept_columns(settings))


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
    entries = [
        {
            "message": f.message,
            "field": f.names,
            "type": f.declared,
            "column": f.column,
            "stored_as": _stored_as(f.field.type),
            "occurred": f.message in occurred,
        }
        for f in fields
    ]
    for message in dict.fromkeys(f.message for f in fields):
        columns = ("field", "type", "column", "stored_as")
        rows = [[entry[column] for column in columns] for entry in entries if entry["message"] == message]
        title = f"{message} (version {chosen.version}, schema id {chosen.schema_id})"
        title += "" if message in occurred else ": no record of it yet; its columns would be"
        output.table(title, ("field", "type", "column", "stored as"), rows)
    left_out = history.left_out(chosen)
    if left_out:
        output.say(left_out)
    output.result(
        {
            "subject": history.subject,
            "left_out": left_out,
            "version": chosen.version,
            "schema_id": chosen.schema_id,
            "fields": entries,
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
    before = [v for v in history.versions() if v.version < later.version]
    earlier = history.version(old) if old is not None else [later, *before][-1]
    changes = history.changes(earlier, later)
    if earlier == later:
        first = "; it is the first one" if not before else ""
        output.say(f"{history.subject}: version {later.version} (id {later.schema_id}): nothing to compare it with{first}")
    else:
        output.say(
            f"{history.subject}: version {earlier.version} (id {earlier.schema_id}) -> {later.version} (id {later.schema_id})"
        )
        _show_changes(output, changes)
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


def _show_changes(output: Output, changes: Sequence[Change]) -> None:
    for change in changes:
        name = f"{change.message}.{change.field}" if change.field else change.message
        declared = " -> ".join(filter(None, (change.before, change.after)))
        output.say(f"  {change.kind}: {name} ({declared}): {change.effect}")
    if not changes:
        output.say(f"  {NOTHING}")


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
    known = list(origins(lakehouse)) if chosen.key.startswith(("bronze_", "silver_")) else []
    metadata = handle.metadata()
    output.say(metadata.description or chosen.name)
    body = []
    lines: list[tuple[object, ...]] = []
    for item in schema:
        own = [origin for origin in known if origin.column == item.name]
        column = _column(item.name, item.type, comments.get(item.name, ""))
        lines.append((item.name, column["type"], _names(own), _first(own), column["comment"]))
        nested = []
        for origin in known:
            if origin.column.startswith(f"{item.name}."):
                member = _column(origin.column, _member(schema, origin.column), origin.comment)
                nested.append(member | _origin(origin))
                lines.append((f"  {origin.column}", member["type"], _names([origin]), _first([origin]), origin.comment))
        body.append(column | {"fields": [_origin(origin) for origin in own], "nested": nested})
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


def _column(name: str, kind: pa.DataType, comment: str) -> dict[str, object]:
    return {"column": name, "type": _stored_as(kind), "comment": comment}


def _stored_as(kind: pa.DataType) -> str:
    return type_name(kind, members=False)


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
    return {name: getattr(origin, name) for name in ("message", "field", "declared", "first_schema", "first_version")}


def _names(columns: list[ColumnOrigin]) -> str:
    return ", ".join(dict.fromkeys(f"{o.message.rpartition('.')[2]}.{o.field}" for o in columns))


def _first(columns: list[ColumnOrigin]) -> str:
    if not columns:
        return ""
    first = columns[0]
    return f"version {first.first_version}" if first.first_version is not None else f"schema id {first.first_schema}"
