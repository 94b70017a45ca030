"""Check that neither bronze nor quarantine lacks rows, as after a manual restore or delete: no run would read these again."""

from contextlib import suppress

from deltalake import DeltaTable

from game_events.config.settings import SETTING
from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import commit, without_rows
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.unsupported import REBUILD
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport


def intact_tables(pipeline: Pipeline, report: RunReport) -> tuple[DeltaTable, DeltaTable | None] | None:
    """Open bronze and quarantine and check that no row of them is missing.

    A quarantine of None: there is no such table; None instead of both: there is no bronze. Commits that are planned from them
    compare their versions. If the run continues without a deleted quarantine, `report` gets a notice, once.

    Raises:
        DataError: one of them was restored, or is an older copy; or quarantine was deleted, and the setting does not allow to
            go on.
    """
    bronze = pipeline.open_bronze()
    if bronze is None:
        return None
    bronze, quarantine = _refuse_older_bronze(pipeline, refuse_restored(pipeline.bronze, bronze)), pipeline.open_quarantine()
    if quarantine is not None:
        quarantine = refuse_restored(pipeline.quarantine, quarantine)
        _refuse_older_quarantine(pipeline, bronze, quarantine)
        return bronze, quarantine
    rows = counter(bronze, Txn.RECORDS_QUARANTINED)
    if not rows:
        return bronze, None
    if pipeline.settings.on_data_loss != "record_gap":
        raise DataError(
            f"{pipeline.quarantine.name} is gone, and with it {rows:,} records with committed offsets: no run reads them "
            f"again. Nothing was done. Put the table back; or rebuild it with bronze: run {REBUILD}; "
            f"or set {SETTING}=record_gap to go on without these records"
        )
    report.warn(f"{pipeline.quarantine.name} is gone, and with it the {rows:,} records that it was given")
    # Recorded in bronze, so that the loss is reported once.
    with suppress(ConflictError):  # another process recorded it, or the next check does
        info, app = {"quarantine_gone": f"{rows} records"}, Txn.RECORDS_QUARANTINED
        advance: dict[str, int] = {app: 0, Txn.QUARANTINE_COMMITS: 0}
        commit(without_rows(pipeline.bronze, bronze, info, expected={app: rows}, advance=advance))
    return pipeline.open_bronze() or bronze, None


def _refuse_older_bronze(pipeline: Pipeline, bronze: DeltaTable) -> DeltaTable:
    """Return a version of bronze that has all batches that silver has.

    An older copy of the table's folder lacks some: new rows would get their numbers, and silver would take them for known ones.

    Raises:
        DataError: bronze is an older copy.
    """
    taken = pipeline.progress.silver_batch(bronze)
    if counter(bronze, Txn.BATCH) < taken:
        # A concurrent run may have committed to both since it was opened.
        bronze = pipeline.bronze.open() or bronze
    if (last := counter(bronze, Txn.BATCH)) < taken:
        raise DataError(
            f"{pipeline.bronze.name} is an older copy: it ends at batch {last}, and silver has rows up to batch {taken}, so it "
            "would leave out new rows of the same numbers. Nothing was done. To go on, put back its newest copy, or the copies "
            f"of all tables of that time; or run {REBUILD}"
        )
    return bronze


def _refuse_older_quarantine(pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable) -> None:
    """Refuse a quarantine without records that bronze counts, whose offsets are committed; it was opened after bronze.

    Raises:
        DataError: quarantine is an older copy.
    """
    made, known = counter(quarantine, Txn.MICRO_BATCHES), counter(bronze, Txn.QUARANTINE_COMMITS)
    if made < known:
        raise DataError(
            f"{pipeline.quarantine.name} is an older copy: {pipeline.bronze.name} counts {known:,} commits to it, it has "
            f"{made:,}. Records with committed offsets are missing: no run reads them again. Nothing was done. To go on, put "
            f"back its newest copy, or the copies of all tables of that time; or delete the table and run {REBUILD}"
        )
