"""`game-events tables`: what is in the lakehouse, from the tables' logs alone."""

import pyarrow as pa
import pyarrow.compute as pc

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.config.settings import load_settings
from game_events.lakehouse.descriptions import owners_of, tags_of
from game_events.lakehouse.tables import Lakehouse, add_actions


def tables(as_json: Json = False) -> None:
    """List the tables: rows, Delta version, files, size, columns, owners; `game-events schema TABLE` shows one's columns."""
    output = Output(as_json=as_json)
    lakehouse = Lakehouse.of(load_settings())
    found = []
    for name in lakehouse.names():
        table = lakehouse.table(name)
        handle = table.open_to_read()
        if handle is None:
            continue
        actions = add_actions(handle)
        found.append(
            {
                "table": table.name,
                "rows": _rows(actions),
                "version": handle.version(),
                "files": actions.num_rows,
                "bytes": int(pc.sum(actions.column("size_bytes")).as_py() or 0),
                "columns": len(handle.schema().fields),
                "owners": owners_of(handle),
                "tags": tags_of(handle),
                "description": handle.metadata().description,
                "location": table.uri,
            }
        )
    if found:
        columns = ["table", "rows", "version", "files", "bytes", "columns"]
        columns += ["owners"] if any(entry["owners"] for entry in found) else []
        rows = [[", ".join(v) if isinstance(v, list) else v for v in map(entry.get, columns)] for entry in found]
        output.table(lakehouse.root, columns, rows)
    else:
        output.say(f"no tables below {lakehouse.root}: `game-events run` makes them (GAME_EVENTS_LAKEHOUSE names the place)")
    output.result({"root": lakehouse.root, "tables": found})


def _rows(files: pa.Table) -> int | None:
    """Rows of these files; None: not known, as one of them is gone or damaged and has no statistics."""
    rows = files.column("num_records")
    return None if rows.null_count else int(pc.sum(rows).as_py() or 0)
