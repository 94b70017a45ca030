"""Finishes an interrupted erasure without its ids: finds the ids with the keyed hashes that are in the suppression list.

Guarantee: an id that is found is erased as by `game-events forget`. Of an id that is in no table, older files included, only
undecodable records may remain.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.errors import DataError
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.event_columns import HEADERS
from game_events.lakehouse.system_tables.suppressed import read_suppressed
from game_events.lakehouse.tables import BRONZE, QUARANTINE, SUPPRESSED, Table, has_persons, is_person, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.old_files import replaced_files
from game_events.pipeline.erasure.run import forget
from game_events.pipeline.erasure.scan import named, run_task
from game_events.pipeline.erasure.subjects import DataSubjects
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.suppression.driver import hashes_of, required_key
from game_events.pipeline.suppression.worker import Suppression, Suppressor, as_texts


def resume(pipeline: Pipeline, report: RunReport, *, dry_run: bool = False) -> DataSubjects:
    """Finish the unfinished erasure of the suppression list.

    `report` gets the result (`erasure`), with the number of ids that are in no row (`lost_ids`). Returns data subjects and
    records for `remove_old_files`.

    Raises:
        DataError: no erasure is unfinished; and as `forget`.
    """
    key = required_key(pipeline.settings)
    listed = read_suppressed(pipeline.lakehouse)
    listed.require_key(key)
    if not listed.unfinished:
        raise DataError(f"no erasure is unfinished in {SUPPRESSED}: there is nothing to resume")
    hashes = listed.unfinished
    ids = _ids_of(pipeline, Suppression(pipeline.settings.key_column, key, frozenset(map(bytes.fromhex, hashes))))
    subjects = forget(pipeline, report, ids, dry_run=dry_run, hashes=hashes)
    if report.erasure is not None:
        report.erasure.lost_ids = len(hashes - hashes_of(key, ids))
    return subjects


def _ids_of(pipeline: Pipeline, suppression: Suppression) -> frozenset[str]:
    """Ids with these hashes, from every table's rows and from its replaced files."""
    pipeline.on_progress("erasure: ids from their hashes")
    tables = {name: pipeline.lakehouse.table(name) for name in pipeline.lakehouse.names()}
    files: list[tuple[str, str]] = []
    for name, table in tables.items():
        handle = table.open_to_read()
        if handle is not None and (name in (BRONZE, QUARANTINE) or has_persons(handle, suppression.column)):
            files += [(name, path) for path in (*paths(handle), *replaced_files(table, handle))]
    return frozenset().union(*(found.ids for found in run_task(pipeline, RecoverTask(tables, suppression), files)))


@dataclass(frozen=True)
class FoundIds:
    """Result of one task."""

    ids: set[str]


@dataclass(frozen=True)
class RecoverTask(WorkerJob[FoundIds]):
    """Finds ids in files, given as rows (table, path); picklable. The key is part of the job, so that no plan or log shows it.

    `suppression`: the column with ids, the key, and the hashes to find.
    """

    result: ClassVar[type] = FoundIds
    tables: dict[str, Table]
    suppression: Suppression

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FoundIds:
        """Search the files."""
        return FoundIds({text for table, path in named(batches) for text in self.find(table, path)})

    def find(self, name: str, path: str) -> set[str]:
        """Ids in one file; empty if maintenance has deleted it."""
        found: set[str] = set()
        system, prefix = file_system(self.tables[name])
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            column = self.suppression.column
            by_key = name in (BRONZE, QUARANTINE)  # for records that are not decoded
            names = [n for n in file.schema_arrow.names if is_person(n, column) or (by_key and n in ("_kafka_key", HEADERS))]
            suppressor = Suppressor(self.suppression)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, names)
                for one in names:
                    find = _texts if is_person(one, column) else _written_texts
                    found |= find(rows.column(one), suppressor)
        return found


def _texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    texts = as_texts(values)
    if texts is None:
        return set()
    return _as_ids(pc.unique(texts.filter(pa.array(suppressor.values(texts)))).to_pylist())


def _written_texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    """Ids in Kafka keys, or in headers."""
    if is_header := pa.types.is_list(values.type):
        values = pc.struct_field(pc.list_flatten(values), "value")
    written = pc.unique(values).to_pylist()
    return _as_ids(text for raw in written for text in suppressor.erased_texts(raw, is_header=is_header))


def _as_ids(ids: Iterable[str | bytes]) -> set[str]:
    # Bytes that are not UTF-8 cannot be an id on a command line.
    return {t if isinstance(t, str) else t.decode("utf-8", "replace") for t in ids}
