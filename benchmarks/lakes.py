"""What a lakehouse holds, found without this project and without Spark: by the tables' logs and Parquet files alone.

Tables are recognized by their names, as this project and its peers choose them: `bronze*`, `silver*`, `gold*`, `*unified*`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Tables of this project that hold no events.
OTHERS = ("quarantine", "progress", "run", "rest_", "deleted")


@dataclass
class Contents:
    """Rows of bronze and silver, events that gold and the unified table count, and tables of gold."""

    bronze: int = 0
    silver: int = 0
    gold: int = 0
    unified: int = 0
    gold_tables: int = 0
    gamers: int = 0


def contents(root: Path) -> Contents:
    """Count everything below a lakehouse."""
    found = Contents()
    gamers_of_all = 0
    for log in sorted(root.glob("*/_delta_log")):
        table = log.parent
        if table.name.startswith("bronze"):
            found.bronze += logged_rows(table)
        elif table.name.startswith("silver"):
            found.silver += logged_rows(table)
        elif "unified" in table.name:
            unified, gamers_of_all = _sessions(table)
            found.unified += unified
        elif table.name.startswith("gold"):
            sessions, rows = _sessions(table)
            found.gold += sessions
            found.gamers += rows
            found.gold_tables += 1
    if not found.gold_tables and found.unified:
        # One table for all games, which is its own unified table.
        found.gold, found.gold_tables, found.gamers = found.unified, 1, gamers_of_all
    return found


def require(root: Path, events: int, name: str, *, unified: bool = True) -> Contents:
    """The contents, which must be so many events in every layer.

    Raises:
        RuntimeError: a layer has more or fewer, so that no figure of it may be shown.
    """
    found = contents(root)
    layers = {"bronze": found.bronze, "silver": found.silver, "gold": found.gold}
    if unified:
        layers["unified"] = found.unified
    wrong = {layer: rows for layer, rows in layers.items() if rows != events}
    if wrong:
        raise RuntimeError(f"{name} should hold {events:,} events in every layer, and holds {wrong}")
    return found


def bytes_below(root: Path) -> int:
    """Bytes of all files, logs included; a file with several names counts once."""
    files = (path.stat() for path in root.rglob("*") if path.is_file())
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values())


def live_files(table: Path) -> dict[str, int]:
    """Path below the table -> rows, of the files of its newest version, from the JSON entries of a log that has them all."""
    files: dict[str, int] = {}
    for action in _actions(table):
        if "add" in action:
            stats = json.loads(action["add"].get("stats") or "{}")
            files[unquote(action["add"]["path"])] = stats.get("numRecords", 0)
        if "remove" in action:
            files.pop(unquote(action["remove"]["path"]), None)
    return files


def logged_rows(table: Path) -> int:
    """Rows of a table, from its log."""
    return sum(live_files(table).values())


def _actions(table: Path) -> Iterator[dict[str, dict[str, str]]]:
    entries = sorted((table / "_delta_log").glob("*.json"))
    assert entries and int(entries[0].stem) == 0, f"the log of {table} does not begin with version 0"
    for entry in entries:
        yield from map(json.loads, entry.read_text().splitlines())


def _sessions(table: Path) -> tuple[int, int]:
    """Events that a gold table counts, and its rows."""
    total, rows = 0, 0
    for path in live_files(table):
        column = pq.read_table(table / path, columns=["session_count"], partitioning=None).column(0)
        total += pc.sum(column).as_py() or 0
        rows += len(column)
    return total, rows
