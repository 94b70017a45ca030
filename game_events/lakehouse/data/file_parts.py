"""Files of a table, or parts of large ones, that Spark's workers read."""

from collections.abc import Sequence
from dataclasses import dataclass

from game_events.lakehouse.data.snapshot import FileSelection


@dataclass(frozen=True)
class FilePart:
    """A file of a table, or every `of`-th of its row groups, from `number` on.

    `table`: its key. `path`: below the table's folder.
    """

    table: str
    path: str
    number: int = 0
    of: int = 1


def parts_of(files: FileSelection, table: str, rows: int) -> Sequence[FilePart]:
    """The files, those with more than so many rows in parts."""
    parts = list[FilePart]()
    for file, path in zip(files.data, files.paths, strict=True):
        of = max(1, -(-(file.rows or 0) // max(1, rows)))
        parts += [FilePart(table, path, number, of) for number in range(of)]
    return parts
