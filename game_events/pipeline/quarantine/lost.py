"""A quarantine that somebody restored or deleted: bronze has passed its records, so no run would ever read them again."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.settings import SETTING
from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.restores import ANY_COMMIT, is_undone, restored_lately, undo
from game_events.lakehouse.commits.restores_note import note_looked_at
from game_events.lakehouse.commits.transactions import Txn
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport


def refuse_restored_quarantine(pipeline: Pipeline, quarantine: DeltaTable | None) -> bool:
    """Stop before anything is decided on the ground of a version of quarantine that lacks rows; one small file is read.

    Args:
        pipeline: the parts.
        quarantine: the version; a commit planned from it has to compare `seen`.

    Returns:
        whether it was restored and has all its rows again, and no commit says so yet.

    Raises:
        DataError: it was restored.
    """
    table = pipeline.quarantine
    if quarantine is None or not restored_lately(table, ANY_COMMIT, quarantine.version()):
        return False
    if is_undone(table, quarantine, ANY_COMMIT):
        return True
    raise DataError(
        f"{table.name} was restored to an older version: rows that came since are gone, bronze has passed their "
        f"records, and what was replayed since would be replayed again. Nothing was done: "
        f"{undo(quarantine, table.name, ANY_COMMIT)}"
    )


def refuse_lost_quarantine(pipeline: Pipeline, bronze: DeltaTable, report: RunReport) -> DeltaTable | None:
    """Stop before anything is decided on the ground of a quarantine that lacks rows.

    Args:
        pipeline: the parts.
        bronze: its newest version.
        report: gets a notice, once, if the run goes on without a deleted quarantine.

    Returns:
        the version that was looked at; None: there is no quarantine.

    Raises:
        DataError: it was restored: a row that was replayed since would be replayed again. Or it was deleted, and the setting
            does not say to go on without its rows.
    """
    quarantine = pipeline.quarantine.open()
    if quarantine is not None:
        if refuse_restored_quarantine(pipeline, quarantine):
            note_looked_at(pipeline.quarantine, quarantine)
            return refuse_lost_quarantine(pipeline, bronze, report)  # somebody may have restored it again
        return quarantine
    rows = int(bronze.transaction_version(Txn.RECORDS_QUARANTINED) or 0)
    if not rows:
        return None
    if pipeline.settings.on_data_loss == "record_gap":
        report.warn(f"{pipeline.quarantine.name} is gone, and with it the {rows:,} records that it was given")
        _told(pipeline, bronze, rows)
        return None
    raise DataError(
        f"{pipeline.quarantine.name} is gone, and with it {rows:,} records that bronze has passed: no run reads them again. "
        f"Nothing was done. Put the table back; or make it anew with bronze, of what Kafka still has (`game-events run "
        f"--full-refresh bronze`); or set {SETTING}=record_gap to go on without these records"
    )


def _told(pipeline: Pipeline, bronze: DeltaTable, rows: int) -> None:
    """Note that a run went on without these records: they are told of once, not in each cycle of a loop."""
    with suppress(ConflictError):  # a rival told it, or the next look does
        commit(
            Commit(
                pipeline.bronze,
                pa.schema(bronze.schema()),
                [],
                expected={Txn.RECORDS_QUARANTINED: rows},
                advance={Txn.RECORDS_QUARANTINED: 0},
                table_id=str(bronze.metadata().id),
                seen=bronze.version(),
                owns_map=True,
                info={"quarantine_gone": f"{rows} records"},
            )
        )
