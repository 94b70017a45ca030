"""An erasure that was interrupted, finished without its ids: the list has their hashes, and the tables lead from these to ids.

Guarantee: whoever is found is forgotten as by `game-events forget` with their ids. An id that no row of any table has any more,
in files of older versions either, has nothing left to erase but bytes of records that never decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.data.staging import file_system, report
from game_events.lakehouse.system_tables.suppressed import read_suppressed
from game_events.lakehouse.tables import BRONZE, QUARANTINE, SUPPRESSED, Table, has_persons, is_person
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.old_files import replaced_files
from game_events.pipeline.erasure.run import forget
from game_events.pipeline.erasure.scan import FILES_IN_DRIVER, by_workers
from game_events.pipeline.erasure.subjects import Wanted
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.suppression.driver import hashes_of, required_key
from game_events.pipeline.suppression.worker import Suppression, Suppressor, as_texts


def resume(pipeline: Pipeline, report: RunReport, *, dry_run: bool = False) -> Wanted:
    """Finish the erasure that is on the list and not finished.

    Args:
        pipeline: the parts.
        report: gets the account (`erasure`), with how many of the ids are in no row (`lost_ids`).
        dry_run: count only.

    Returns:
        whom, and which records, to look for in files of older versions.

    Raises:
        DataError: none is unfinished; or what `forget` raises.
        ConfigurationError, ConflictError: as `forget` does.
    """
    key = required_key(pipeline.settings)
    listed = read_suppressed(pipeline.lakehouse)
    listed.require_key(key)
    if not listed.unfinished:
        raise DataError(f"no erasure is unfinished in {SUPPRESSED}: there is nothing to resume")
    hashes = listed.unfinished
    ids = _ids_of(pipeline, Suppression(pipeline.settings.key_column, key, frozenset(map(bytes.fromhex, hashes))))
    wanted = forget(pipeline, report, ids, dry_run=dry_run, hashes=hashes)
    if report.erasure is not None:
        report.erasure.lost_ids = len(hashes - hashes_of(key, ids))
    return wanted


def _ids_of(pipeline: Pipeline, suppression: Suppression) -> frozenset[str]:
    """Ids that have these hashes, from the rows of every table and of files that it has replaced lately."""
    pipeline.on_progress("erasure: ids from their hashes")
    tables = {name: pipeline.lakehouse.table(name) for name in pipeline.lakehouse.names()}
    files: list[tuple[str, str]] = []
    for name, table in tables.items():
        handle = table.open()
        if handle is not None and (name in (BRONZE, QUARANTINE) or has_persons(handle, suppression.column)):
            files += [(name, path) for path in (*paths(handle), *replaced_files(table, handle))]
    task = RecoverTask(tables, suppression)
    return frozenset(_found(pipeline, task, files))


def _found(pipeline: Pipeline, task: RecoverTask, files: Sequence[tuple[str, str]]) -> Iterator[str]:
    if len(files) <= FILES_IN_DRIVER:
        for name, path in files:
            yield from task.look(name, path)
        return
    yield from by_workers(pipeline, task, files)


@dataclass(frozen=True)
class RecoverTask:
    """Workers' part; picklable. The key travels inside the function, so that no plan or log shows it.

    Attributes:
        tables: name -> where it is.
        suppression: the column with ids, the key, and the hashes to look for.
    """

    tables: dict[str, Table]
    suppression: Suppression

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: consumes (table, path), yields an id a row (`REPORT_SCHEMA`)."""
        found: set[str] = set()
        for batch in batches:
            for table, path in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                found |= self.look(table, path)
        yield report(("id", text) for text in sorted(found))

    def look(self, name: str, path: str) -> set[str]:
        """Ids in one file; none if maintenance has deleted it meanwhile."""
        found: set[str] = set()
        system, prefix = file_system(self.tables[name])
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            column = self.suppression.column
            by_key = name in (BRONZE, QUARANTINE)  # of bronze for what is not decoded there
            names = [n for n in file.schema_arrow.names if is_person(n, column) or (by_key and n == "_kafka_key")]
            suppressor = Suppressor(self.suppression)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, names)
                for one in names:
                    found |= _texts(rows.column(one), suppressor)
        return found


def _texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    texts = as_texts(values)
    if texts is None:
        return set()
    theirs = pc.unique(texts.filter(pa.array(suppressor.values(texts)))).to_pylist()
    # Bytes that are no text are no id that anybody could have given.
    return {t if isinstance(t, str) else t.decode("utf-8", "replace") for t in theirs}
