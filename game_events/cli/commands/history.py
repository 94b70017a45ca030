"""`game-events history`: the versions of a table, and what made each of them."""

from dataclasses import asdict
from typing import Annotated

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.config.settings import load_settings
from game_events.lakehouse.commits.history import Version, versions
from game_events.lakehouse.tables import Lakehouse, existing_table


def history(
    table: Annotated[str, typer.Argument(help="A table's name, as `game-events tables` lists it.")],
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest versions.")] = 20,
    as_json: Json = False,
) -> None:
    """A table's versions, newest first: when, what kind, rows, batch, offsets, run; restores and maintenance too."""
    output = Output(as_json=as_json)
    chosen, handle = existing_table(Lakehouse.of(load_settings()), table)
    found = list(versions(chosen, handle.version(), limit))
    output.say(chosen.uri)
    for entry in found:
        output.say(_line(entry))
    if found and found[-1].version > 0 and len(found) == limit:
        output.say(f"only {limit} versions are shown: --limit shows more")
    elif found and found[-1].version > 0:
        output.say(f"older versions' entries were cleaned up (before version {found[-1].version})")
    output.result({"table": chosen.name, "location": chosen.uri, "versions": [asdict(entry) for entry in found]})


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
