"""`game-events history`: the versions of a table, and what made each of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from game_events.cli.names import existing_table
from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.lakehouse.tables import Lakehouse
from game_events.lakehouse.versions import Version, versions
from game_events.settings import load_settings

#: Characters of a run's id that a person needs.
RUN_CHARS = 8
COLUMNS = ("version", "time", "kind", "rows", "removed", "files", "batch", "run", "offsets")


def history(
    table: Annotated[str, typer.Argument(help="A table's name, as `game-events tables` lists it.")],
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest versions.")] = 20,
    as_json: Json = False,
) -> None:
    """A table's versions, newest first: when, what kind, rows, batch, offsets, run; restores and maintenance too."""
    output = Output(as_json=as_json)
    lakehouse = Lakehouse.of(load_settings())
    chosen, handle = existing_table(lakehouse, table)
    found = list(versions(chosen, handle.version(), limit))
    output.table(chosen.uri, COLUMNS, [_row(entry) for entry in found])
    if found and found[-1].version > 0 and len(found) == limit:
        output.say(f"only {limit} versions are shown: --limit shows more")
    elif found and found[-1].version > 0:
        output.say(f"older versions' entries were cleaned up (before version {found[-1].version})")
    output.result({"table": chosen.name, "location": chosen.uri, "versions": [asdict(entry) for entry in found]})


def _row(entry: Version) -> tuple[object, ...]:
    def shown(value: object) -> object:
        return "-" if value is None else value

    return (
        entry.version,
        f"{entry.time:%Y-%m-%d %H:%M:%S}",
        entry.kind,
        shown(entry.added) if entry.files_added else "-",
        shown(entry.removed) if entry.files_removed else "-",
        f"+{entry.files_added} -{entry.files_removed}",
        shown(entry.batch),
        (entry.run_id or "-")[:RUN_CHARS],
        entry.offsets or "-",
    )
