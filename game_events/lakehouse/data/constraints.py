"""Rows of staged files are checked against the constraints that somebody has given their table, before the commit.

NOT NULL by the files' own counts. CHECK constraints and invariants by Spark (`spark_constraints.py`), whose SQL they are:
another engine would mean another thing by the same text. A row fulfils a constraint if the condition is TRUE, as for Spark's
own INSERT: neither NULL nor an error.

A table without constraints costs nothing: whether there are any is known of its columns and properties.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.table_properties import constraints_of
from game_events.lakehouse.tables import Table

#: What says where a row comes from, if the table has it.
PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Broken:
    """A constraint that rows of a file do not fulfil.

    `name`: as an error says it. `rows`: how many. `example`: one of them, in words.
    """

    name: str
    rows: int
    example: str


def require_fulfilled(table: Table, handle: DeltaTable, files: Sequence[StagedFile]) -> None:
    """Raise DataError if rows of staged files break a constraint of the table."""
    broken = broken_in(table, handle, files)
    for path in broken:
        raise DataError(sentence(table, broken[path]))


def sentence(table: Table, broken: Broken) -> str:
    """What an error says of a broken constraint."""
    return (
        f"{table.name}: {broken.rows} new rows break {broken.name} of the table, e.g. {broken.example}. Nothing was written. "
        "To go on, keep such rows away by a rule with the action quarantine (docs/quality.md), or take the constraint back "
        "(docs/maintenance.md)"
    )


def broken_in(table: Table, handle: DeltaTable, files: Sequence[StagedFile]) -> dict[str, Broken]:
    """Path -> the first constraint of the table that rows of this staged file break.

    Raises:
        DataError: a constraint cannot be evaluated, e.g. as this process has no Spark.
    """
    constraints = of_columns(handle, constraints_of)
    if constraints is None or not files:
        return {}
    broken = dict[str, Broken]()
    for name in constraints.not_null:
        for file in files:
            if file.path not in broken and (nulls := _nulls(table, handle, file, name)):
                broken[file.path] = Broken(f"NOT NULL of column {name}", nulls, _example(table, handle, file, name))
    if constraints.checks:
        # Hardly any table has them, and PySpark is slow to load.
        from game_events.lakehouse.data.spark_constraints import evaluated  # noqa: PLC0415

        root = handle.table_uri.rstrip("/")
        paths = tuple(file.path for file in files if file.path not in broken)
        for path, number, rows, example in evaluated(root, handle.schema().to_json(), constraints, paths):
            name, sql = constraints.checks[number]
            broken.setdefault(path, Broken(f"the constraint {name} ({sql})", rows, example))
    return broken


def _nulls(table: Table, handle: DeltaTable, file: StagedFile, column: str) -> int:
    """NULLs of a column in a file, by its statistics; or by its values, where it has none."""
    if column == table.by:  # the folder says it
        return 0
    count = json.loads(file.stats)["nullCount"].get(column)
    if count is not None:
        return int(count)
    return sum(rows.column(column).null_count for rows in _read(table, handle, file, column))


def _read(table: Table, handle: DeltaTable, file: StagedFile, column: str) -> Iterator[pa.Table]:
    """A column, and where the rows come from."""
    wanted = pa.schema([f.with_nullable(True) for f in pa.schema(handle.schema()) if f.name in (column, *PLACE)])
    return read_parts(table, wanted, [file.path])


def _example(table: Table, handle: DeltaTable, file: StagedFile, column: str) -> str:
    with_null = (rows.filter(rows.column(column).is_null()) for rows in _read(table, handle, file, column))
    return next((in_words(rows.slice(0, 1).to_pylist()[0]) for rows in with_null if rows.num_rows), in_words({}))


def in_words(row: dict[str, object]) -> str:
    """Where a row comes from. Not its values: they may be a person's."""
    topic, partition, offset = (row.get(name) for name in PLACE)
    return f"offset {offset} of {topic}[{partition}]" if offset is not None else "a row without an offset"
