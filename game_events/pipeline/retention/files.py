"""Files that may have older rows, and the same rows in other files but for what goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from deltalake import DeltaTable

from game_events.errors import LostFileError
from game_events.lakehouse.data.rewriting import Change, Rewriting
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.maintenance import MOST_BYTES
from game_events.lakehouse.open_table import data_files
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline.retention.ages import Ages, nulls_in


@dataclass
class Turn:
    """One maintenance of one table.

    Attributes:
        now_us: the time that ages are counted from, in microseconds since 1970.
        dry_run: it only counts.
        written: bytes of the files that it writes again: at most `MOST_BYTES`, or one larger file.
        whole: in a dry run, paths of files of which all rows would be gone; `changed`: of those that would be written again.
        stays: some rows of these -> those that would stay, by some `columns`.
    """

    now_us: int
    dry_run: bool = False
    written: int = 0
    whole: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    stays: Change | None = None
    columns: frozenset[str] = frozenset()

    def takes(self, size: int) -> bool:
        """Whether there is room for another file of that size; it is taken."""
        if self.written and self.written + size > MOST_BYTES:
            return False
        self.written += size
        return True


@dataclass(frozen=True)
class File:
    """A file that may have older rows, by its statistics.

    `all_older`: each of its rows is. `nulls`: NULLs of a column that was asked for; -1: not known.
    """

    path: str
    rows: int
    size: int
    all_older: bool
    highest_batch: int | None
    nulls: int = -1


def candidates(handle: DeltaTable, ages: Ages, nulls_of: str = "") -> Iterator[File]:
    """The files that may have older rows, the oldest first; `nulls_of`: as in `File`."""
    actions = add_actions(handle)
    if not actions.num_rows:
        return
    first, last = ages.bounds(actions)
    earliest, latest = ages.limits_in(actions)
    files = data_files(actions)
    nulls = nulls_in(actions, nulls_of)
    for number in np.argsort(first, kind="stable").tolist():
        if first[number] < latest[number]:
            file = files[number]
            is_old = bool(last[number] < earliest[number])
            yield File(file.plain_path, file.rows or 0, file.size, is_old, file.highest_batch, int(nulls[number]))


def rewritten(
    table: Table, handle: DeltaTable, paths: Iterable[str], change: Change
) -> tuple[list[StagedFile], dict[str, str]]:
    """The rows of files, changed, in their order, in new files of their partitions; after an error there are none.

    And path -> why, of files that are lost.
    """
    files: list[StagedFile] = []
    lost: dict[str, str] = {}
    again = Rewriting(table, handle)
    try:
        for path in paths:
            try:
                files += again.one_by_one([path], change)
            except LostFileError as error:
                lost[path] = str(error)
    except BaseException:
        discard(table, files)
        raise
    return files, lost
