"""A decode job: what its workers return, and the loop that repeats it until every type it meets was planned for."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import add, or_
from typing import ClassVar

from pyspark.sql import DataFrame

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.column_map import ColumnMap
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.latency import Arrivals
from game_events.pipeline.reporting.merging import Summed, add_counts, by_key, extend, merged
from game_events.sources.core.source import Offsets

log = logging.getLogger(__name__)


@dataclass
class StageResult(Summed):
    """What workers return of a micro-batch, or of stored rows.

    Attributes:
        bronze, quarantine: files.
        types, unknown: pairs of schema id and index path that were decoded; that the plan does not know.
        reasons: why rows are in quarantine.
        arrivals: when the records were produced (only of records from Kafka).
        suppressed: rows of erased data subjects, which are in no file.
        suppressed_records: of stored rows: (topic id, partition, offset, batch) of these.
        schemas: that files brought and the plan does not know.
        origins: of records from files, an archive's too: split -> offset after the last one.
        undecoded: rows of message types that are not selected; they are in bronze's files.
        large: records that are not small, where the job takes small ones only: then it has written nothing.
    """

    bronze: list[StagedFile] = merged(extend, list)
    quarantine: list[StagedFile] = merged(extend, list)
    types: set[TypeKey] = merged(or_, set)
    unknown: set[TypeKey] = merged(or_, set)
    reasons: Counter[str] = merged(add_counts, Counter)
    arrivals: Arrivals = merged(add_counts, Counter)
    suppressed: int = merged(add, int)
    suppressed_records: list[tuple[str, int, int, int]] = merged(extend, list)
    schemas: list[RegistrySchema] = merged(extend, list)
    origins: Offsets = merged(by_key(max), dict)
    undecoded: Counter[TypeKey] = merged(add_counts, Counter)
    large: int = merged(add, int)

    def discard(self, bronze: Table, quarantine: Table | None) -> None:
        """Delete the files; none of them is in a commit."""
        discard(bronze, self.bronze)
        if quarantine is not None:
            discard(quarantine, self.quarantine)


@dataclass(frozen=True)
class DecodeJob(WorkerJob[StageResult]):
    """A worker job that decodes rows and writes them to files.

    `bronze`, `quarantine`: tables of the files; None: undecodable rows are not written to quarantine.
    """

    result: ClassVar[type] = StageResult
    bronze: Table
    quarantine: Table | None
    plan: DecodePlan


def run_decode_job(
    pipeline: Pipeline, job: DecodeJob, rows: DataFrame, columns: ColumnMap, wanted: Iterable[TypeKey]
) -> StageResult:
    """Run rows through the workers, again if types occurred that the plan did not know: only the driver asks the registry.

    Files of earlier attempts are deleted; so are files of a plan with types that did not occur and that changed columns, as the
    commit gives the table the columns of the types that occurred. Not again if there are `large` records.

    `wanted`: types to plan for at once; those that this process met are added.

    Raises:
        TransientError: a type's schema is not archived and the registry does not answer.
    """
    catalog = pipeline.catalog
    planned = set(wanted) | catalog.met_types() | {(schema_id, ()) for schema_id in catalog.unknown_ids()}
    room, rest = catalog.max_unknown_ids, None
    while True:
        job = replace(job, plan=catalog.plan(columns, planned, rest))
        staged = StageResult.sum(job.collect(rows))
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        if staged.large or (not new and _same_columns(job.plan.columns, catalog.message_columns(columns, staged.types))):
            return staged
        staged.discard(job.bronze, job.quarantine)
        asked, missed = catalog.look_up(new, room)
        room -= missed
        if asked < new:
            log.warning("schema_ids_not_asked=%d limit=%d", len(new - asked), catalog.max_unknown_ids)
            rest = f"the registry was not asked: it does not know more than {catalog.max_unknown_ids:,} ids of one micro-batch"
            rest += " (GAME_EVENTS_MAX_UNKNOWN_IDS)"
        planned = planned | asked if new else {*staged.types, *staged.undecoded}


def _same_columns(planned: ColumnMap, occurred: ColumnMap) -> bool:
    """Whether no column of the plan depends on a type that did not occur."""
    return dict(planned.columns) == dict(occurred.columns) and all(
        planned.names.get(key) == name for key, name in occurred.names.items()
    )
