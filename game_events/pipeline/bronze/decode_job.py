"""A decode job: what its workers return, and the loop that repeats it until every type it meets was planned for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
from game_events.sources.core.source import Offsets

log = logging.getLogger(__name__)


@dataclass
class StageResult:
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
    """

    bronze: list[StagedFile] = field(default_factory=list)
    quarantine: list[StagedFile] = field(default_factory=list)
    types: set[TypeKey] = field(default_factory=set)
    unknown: set[TypeKey] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    arrivals: Arrivals = field(default_factory=Counter)
    suppressed: int = 0
    suppressed_records: list[tuple[str, int, int, int]] = field(default_factory=list)
    schemas: list[RegistrySchema] = field(default_factory=list)
    origins: Offsets = field(default_factory=dict)
    undecoded: Counter[TypeKey] = field(default_factory=Counter)

    def add(self, other: StageResult) -> None:
        """Add what another worker, or the workers of another micro-batch, returned."""
        self.bronze += other.bronze
        self.quarantine += other.quarantine
        self.types |= other.types
        self.unknown |= other.unknown
        self.reasons += other.reasons
        self.arrivals += other.arrivals
        self.suppressed += other.suppressed
        self.suppressed_records += other.suppressed_records
        self.schemas += other.schemas
        self.origins |= {split: max(end, self.origins.get(split, 0)) for split, end in other.origins.items()}
        self.undecoded += other.undecoded

    def discard(self, bronze: Table, quarantine: Table | None) -> None:
        """Delete the files; none of them is in a commit."""
        discard(bronze, self.bronze)
        if quarantine is not None:
            discard(quarantine, self.quarantine)


@dataclass(frozen=True)
class DecodeJob(WorkerJob[StageResult]):
    """A worker job that decodes rows and writes them to files.

    Attributes:
        bronze, quarantine: tables of the files; None: undecodable rows are not written to quarantine.
        plan: how to decode.
    """

    result: ClassVar[type] = StageResult
    bronze: Table
    quarantine: Table | None
    plan: DecodePlan


def run_decode_job(
    pipeline: Pipeline, job: DecodeJob, rows: DataFrame, columns: ColumnMap, wanted: Iterable[TypeKey]
) -> StageResult:
    """Run rows through the workers, again with the types that occurred and that the plan did not know.

    Only the driver asks the registry, so workers report such types instead of decoding them. Files of earlier attempts are
    deleted. So are files of a plan with types that did not occur and whose fields took names or made columns: a commit gives
    the table the columns of what occurred, and its files must have the same.

    Args:
        pipeline: the parts.
        job: the workers' job; it gets the plan.
        rows: what the job reads; evaluated in each attempt.
        columns: the column map so far.
        wanted: types to plan for at once; those that this process met are added.

    Raises:
        TransientError: a type's schema is not archived and the registry does not answer.
    """
    catalog = pipeline.catalog
    planned = set(wanted) | catalog.met | {(schema_id, ()) for schema_id in catalog.unknown_ids()}
    room, rest = catalog.max_unknown_ids, None
    while True:
        job = replace(job, plan=catalog.plan(columns, planned, rest))
        staged = StageResult()
        for found in job.collect(rows):
            staged.add(found)
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        if not new and _same_columns(job.plan.columns, catalog.message_columns(columns, staged.types)):
            # An unknown type may be registered before the next micro-batch, which asks again.
            catalog.met = {key for key in catalog.met if catalog.has(key[0])}
            return staged
        staged.discard(job.bronze, job.quarantine)
        asked, missed = catalog.look_up(new, room)
        room -= missed
        if asked < new:
            log.warning("schema_ids_not_asked=%d limit=%d", len(new - asked), catalog.max_unknown_ids)
            rest = f"the registry was not asked: more than {catalog.max_unknown_ids:,} ids that it does not know in one slice"
            rest += " (GAME_EVENTS_MAX_UNKNOWN_IDS)"
        planned = planned | asked if new else {*staged.types, *staged.undecoded}
        catalog.met |= asked


def _same_columns(planned: ColumnMap, occurred: ColumnMap) -> bool:
    """Whether no column of the plan depends on a type that did not occur."""
    return dict(planned.columns) == dict(occurred.columns) and all(
        planned.names.get(key) == name for key, name in occurred.names.items()
    )
