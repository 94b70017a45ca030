"""A decode job that is run again until every type it meets was planned for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from pyspark.sql import DataFrame

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.column_map import ColumnMap
from game_events.lakehouse.data.staging import REPORT_SCHEMA, discard
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze.worker import StageTask
from game_events.pipeline.bronze.worker_result import StageResult
from game_events.pipeline.context import Pipeline

log = logging.getLogger(__name__)


def run_decode_job(
    pipeline: Pipeline,
    columns: ColumnMap,
    wanted: Iterable[TypeKey],
    read: Callable[[], DataFrame],
    task: Callable[[DecodePlan], StageTask],
) -> StageResult:
    """Run rows through the workers; again with whatever types turned up that the plan did not know.

    Only the driver asks the registry, so workers report such types instead of decoding them; nothing is committed before a
    pass has met none. Files of the passes before are deleted. So are they if the plan knew types that no row has, and their
    fields took names or made columns: a commit gives the table the columns of what occurred, and its files must have the same.

    Args:
        pipeline: the parts.
        columns: where fields land so far.
        wanted: types to plan for at once; those met earlier in this process are added.
        read: gives the rows.
        task: what workers do with a plan.

    Raises:
        TransientError: a type's schema is neither archived nor can the registry be asked.
    """
    catalog = pipeline.catalog
    planned = set(wanted) | catalog.met | {(schema_id, ()) for schema_id in catalog.unknown_ids()}
    room, rest = catalog.max_unknown_ids, None
    while True:
        work = task(catalog.plan(columns, planned, rest))
        rows = read().mapInArrow(work, REPORT_SCHEMA).collect()
        staged = StageResult.read((r["kind"], r["body"]) for r in rows)
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        if not new and _same_columns(work.plan.columns, catalog.message_columns(columns, staged.types)):
            # What is unknown may be registered by the next slice, and is asked about anew.
            catalog.met = {key for key in catalog.met if catalog.has(key[0])}
            return staged
        _discard(work.tables, staged)
        looked_at, missed = catalog.look_up(new, room)
        room -= missed
        if looked_at < new:
            log.warning("schema_ids_not_asked=%d limit=%d", len(new - looked_at), catalog.max_unknown_ids)
            rest = f"the registry was not asked: more than {catalog.max_unknown_ids:,} ids that it does not know in one slice"
            rest += " (GAME_EVENTS_MAX_UNKNOWN_IDS)"
        planned = planned | looked_at if new else {*staged.types, *staged.undecoded}
        catalog.met |= looked_at


def _same_columns(planned: ColumnMap, occurred: ColumnMap) -> bool:
    """Whether every field is where it is without the types that were planned for and did not occur."""
    return dict(planned.columns) == dict(occurred.columns) and all(
        planned.names.get(key) == name for key, name in occurred.names.items()
    )


def _discard(tables: tuple[Table, Table | None], staged: StageResult) -> None:
    bronze, quarantine = tables
    discard(bronze, staged.bronze)
    if quarantine is not None:
        discard(quarantine, staged.quarantine)
