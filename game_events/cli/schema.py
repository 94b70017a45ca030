"""`game-events schema`: what a version of the topic's schema holds, and what it changed."""

from __future__ import annotations

from typing import Annotated

import typer

from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.choose_source import subjects
from game_events.pipeline.schema_history import SchemaHistory
from game_events.settings import Settings, load_settings
from game_events.sources.registry import SchemaRegistry

app = typer.Typer(help="The versions of the topic's schema, and the columns they become.", no_args_is_help=True)

Subject = Annotated[str | None, typer.Option("--subject", help="Default: <topic>-value, if there is one topic.")]


def _history(subject: str | None) -> SchemaHistory:
    settings = load_settings()
    return SchemaHistory(SchemaRegistry(settings), Lakehouse.of(settings), subject or _only_subject(settings))


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
    for message in dict.fromkeys(f.message for f in fields):
        rows = [(f.names, f.declared, f.column, f.field.kind) for f in fields if f.message == message]
        output.table(
            f"{message} (version {chosen.version}, schema id {chosen.schema_id})",
            ("field", "type", "column", "stored as"),
            rows,
        )
    output.result(
        {
            "subject": history.subject,
            "version": chosen.version,
            "schema_id": chosen.schema_id,
            "fields": [
                {
                    "message": f.message,
                    "field": f.names,
                    "type": f.declared,
                    "column": f.column,
                    "stored_as": f.field.kind,
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
    if earlier is None:
        before = [v for v in history.versions() if v.version < later.version]
        earlier = before[-1] if before else later
    changes = history.changes(earlier, later)
    title = f"{history.subject}: version {earlier.version} (id {earlier.schema_id}) -> {later.version} (id {later.schema_id})"
    output.say(title)
    for change in changes:
        name = f"{change.message}.{change.field}" if change.field else change.message
        declared = " -> ".join(filter(None, (change.before, change.after)))
        output.say(f"  {change.kind}: {name} ({declared}): {change.effect}")
    if not changes:
        output.say("  no field changed")
    output.result(
        {
            "subject": history.subject,
            "old": {"version": earlier.version, "schema_id": earlier.schema_id},
            "new": {"version": later.version, "schema_id": later.schema_id},
            "changes": [c.to_dict() for c in changes],
        }
    )
