"""How many rows and bytes of a table are read, sorted, written and sent at a time: parameters that travel with each table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of one lakehouse's tables, in the driver and in Spark's workers. No settings: the defaults were measured.

    With tiny ones a few rows go the ways of millions (`game_events_tests/scenarios/fuzz`).

    Attributes:
        read_rows: rows that are read at a time, and rows of bronze that the driver counts by itself.
        read_whole_bytes: size of a file up to which it is read as a whole.
        row_group_rows: rows of a row group: columnar enough for readers, small enough that some hundred open writers fit in
            memory.
        sent_rows: rows that a worker sends to Spark together: each batch costs Spark more than some hundred rows.
        sorted_rows: rows that a worker sorts by game at a time: so many that a game's part is more than a handful of rows.
    """

    read_rows: int = 1_048_576
    read_whole_bytes: int = 1024 * 1024
    row_group_rows: int = 131_072
    sent_rows: int = 10_000
    sorted_rows: int = 262_144
