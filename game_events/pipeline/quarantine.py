"""Changes of quarantine that bronze decides; and whether bronze and quarantine are intact.

A full refresh and a replay of bronze change quarantine, too. Two tables have two commits, and bronze's decides: whatever plans
from quarantine first completes there what bronze's last full refresh and replay have decided (`complete_quarantine`).

- A full refresh replaces the undecodable rows. Before bronze's commit the new files of quarantine are only listed, in a small
  file beside the table that is named by the refresh's ticket; no reader sees them. Bronze's commit has the ticket (`txn`
  `full_refresh`).
- A replay marks the rows that it has added to bronze: when, and as which batch (`txn` `replay`).

Check that neither bronze nor quarantine lacks rows, as after a manual restore or delete: no run would read these again.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.config.settings import SETTING
from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, refuse_restored, retry_on_conflict, without_rows
from game_events.lakehouse.commits.transactions import Txn, counter, incarnation, txn, txns
from game_events.lakehouse.data.columns import COORDINATES, HEADERS, QUARANTINE_DESCRIPTION, SOURCE
from game_events.lakehouse.data.reading import files_with, may_hold
from game_events.lakehouse.data.spark_files import read_files, spark_schema, travelling
from game_events.lakehouse.data.staging import StagedFile, discard, file_system, writable_file_system
from game_events.lakehouse.table_properties import REBUILD
from game_events.lakehouse.tables import Layer, Table, add_actions, paths, table_id, version_of
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.sources.factory import not_read, since
from game_events.sources.source import Partition
from game_events.workers.job import FileStage

_LIST = re.compile(r"_full_refresh-(\d+)\.json")


@dataclass(frozen=True)
class ResetList:
    """New content of quarantine when bronze is replaced.

    Attributes:
        batch: batch of bronze's commit.
        ends: partition -> offset after its last decided record.
        files: the new rows, not committed.
        origins: partitions of the records of files, an archive's too.
    """

    batch: int
    ends: Mapping[Partition, int]
    files: list[StagedFile]
    origins: frozenset[Partition] = frozenset()


def is_finished(bronze: DeltaTable, quarantine: DeltaTable | None) -> bool:
    """Whether quarantine has the last full refresh of bronze, by these versions."""
    ticket = bronze.transaction_version(Txn.FULL_REFRESH)
    return ticket is None or ticket == txn(quarantine, Txn.FULL_REFRESH.of(table_id(bronze)))


def is_noted(bronze: DeltaTable, quarantine: DeltaTable) -> bool:
    """Whether quarantine has the marks of bronze's last replay, by these versions."""
    batch = bronze.transaction_version(Txn.REPLAY)
    return batch is None or batch == quarantine.transaction_version(Txn.REPLAY.of(table_id(bronze)))


@retry_on_conflict()
def complete_full_refresh(pipeline: Pipeline, report: RunReport) -> None:
    """Commit what bronze's last full refresh has decided about quarantine, unless it has it already.

    Raises:
        ConflictError: concurrent runs won every attempt; the next run continues.
        DataError: quarantine was restored: this commit would hide that.
    """
    bronze = pipeline.open_bronze()
    quarantine = pipeline.open_quarantine()
    if bronze is not None and not is_finished(bronze, quarantine):
        _finish_full_refresh(pipeline, bronze, quarantine, report)


@retry_on_conflict()
def complete_quarantine(pipeline: Pipeline, report: RunReport) -> None:
    """As `complete_full_refresh`; then commit what bronze's last replay has decided about quarantine."""
    complete_full_refresh(pipeline, report)
    bronze = pipeline.open_bronze()
    quarantine = pipeline.open_quarantine()
    if bronze is not None and quarantine is not None and not is_noted(bronze, quarantine):
        _mark_replayed(pipeline, bronze, refuse_restored(pipeline.quarantine, quarantine))


def quarantine_rows(pipeline: Pipeline, files: Iterable[str]) -> DataFrame:
    """Rows of files of quarantine, given by their paths, in today's columns."""
    uris = [quote(f"{pipeline.quarantine.uri.rstrip('/')}/{path}", safe=":/") for path in sorted(files)]
    return read_files(pipeline.spark, uris, spark_schema(Schema.from_arrow(_columns(pipeline))))


def _columns(pipeline: Pipeline) -> pa.Schema:
    """Today's columns of quarantine."""
    return pipeline.quarantine_columns(pipeline.open_quarantine())


def _write(pipeline: Pipeline, rows: DataFrame) -> list[StagedFile]:
    columns = _columns(pipeline)
    return FileStage(pipeline.quarantine, columns, HEADERS).write(rows.select(travelling(columns.names)))


def _commit(
    pipeline: Pipeline,
    quarantine: DeltaTable | None,
    files: list[StagedFile],
    rewritten: frozenset[str],
    expected: Mapping[str, int | None],
    advance: Mapping[str, int],
    info: Mapping[str, str],
) -> Landed:
    """Commit files in place of the rewritten ones, as planned from this version of quarantine."""
    return commit(
        Commit(
            pipeline.quarantine,
            pipeline.quarantine_columns(quarantine),
            files,
            expected,
            advance,
            table_id(quarantine),
            version_of(quarantine),
            rewritten=rewritten,
            info=info,
            description=QUARANTINE_DESCRIPTION,
        )
    )


def _finish_full_refresh(pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable | None, report: RunReport) -> None:
    """Replace the rows of records that the refresh has read by its rows; all others stay."""
    ticket = counter(bronze, Txn.FULL_REFRESH)
    listed = read_list(pipeline.quarantine, ticket)
    if quarantine is None and (listed is None or not listed.files):
        return  # nothing was undecodable, or the table was deleted: there is no row to add
    rewritten: frozenset[str] = frozenset()
    if quarantine is not None:
        quarantine = refuse_restored(pipeline.quarantine, quarantine)
        if listed is not None:
            rewritten = _files_of_bronze(quarantine)
    files = _stage_listed(pipeline, listed, rewritten, ticket)
    done = Txn.FULL_REFRESH.of(table_id(bronze))
    ends = {partition.app: end for partition, end in listed.ends.items()} if listed is not None else {}
    # A micro-batch that is about to commit rows was planned from the old bronze: `MICRO_BATCHES` makes its commit fail.
    expected = txns(quarantine, (done, Txn.MICRO_BATCHES, *ends))
    advance = {done: ticket, Txn.MICRO_BATCHES: counter(quarantine, Txn.MICRO_BATCHES) + 1}
    # Rows after the end stay: a concurrent run may have decided on them already.
    advance |= {app: max(end, counter(quarantine, app)) for app, end in ends.items()}
    info = {"full_refresh_of": pipeline.bronze.name, "run_id": pipeline.run_id}
    landed = _commit(pipeline, quarantine, files, rewritten, expected, advance, info)
    failpoints.reach("reset_finished")
    report.add_landed(
        Layer.QUARANTINE, pipeline.quarantine, landed, pipeline.quarantine_columns(quarantine), incarnation(bronze)
    )
    if listed is not None:
        forget(pipeline.quarantine, ticket, listed.files)


def _files_of_bronze(quarantine: DeltaTable) -> frozenset[str]:
    """Paths of the files that may have undecodable rows."""
    actions = add_actions(quarantine)
    of_bronze = actions.filter(may_hold(actions, "layer", Layer.BRONZE, Layer.BRONZE))
    return frozenset(map(str, of_bronze.column("path").to_pylist()))


def _stage_listed(pipeline: Pipeline, listed: ResetList | None, rewritten: frozenset[str], ticket: int) -> list[StagedFile]:
    """The files of `_stage`; none without a list.

    Raises:
        ConflictError: a concurrent run deleted the listed files, as it has finished this refresh.
    """
    if listed is None or not (listed.files or rewritten):
        return []
    try:
        return _stage(pipeline, listed, rewritten)
    except (PySparkException, Py4JJavaError) as error:
        if read_list(pipeline.quarantine, ticket) is None:
            raise ConflictError(f"{pipeline.quarantine.name}: a concurrent run deleted the files of this job") from error
        raise


def _stage(pipeline: Pipeline, listed: ResetList, rewritten: frozenset[str]) -> list[StagedFile]:
    """Files with the refresh's rows, and those of the rewritten files that stay."""
    # The listed files are copied: a commit that loses to a concurrent one deletes its files, and the listed ones must remain.
    rows = quarantine_rows(pipeline, (f.path for f in listed.files))
    if rewritten:
        held = quarantine_rows(pipeline, rewritten)
        stays = ~F.col("layer").eqNullSafe(Layer.BRONZE) | _later(listed, sourced=SOURCE in held.columns)
        rows = rows.unionByName(held.where(stays))
    return _write(pipeline, rows.coalesce(2))


def _later(listed: ResetList, *, sourced: bool) -> Column:
    """Condition on rows of quarantine that stay: after the end of the full refresh, or of what it has not read."""
    if any(not partition.has_record_offsets for partition in listed.ends):
        # Offsets of other kinds of partitions are no records' offsets; bronze's batch decides as well.
        return (F.col("_batch") > listed.batch) | not_read({*listed.ends, *listed.origins}, sourced=sourced)
    return since(listed.ends) | not_read(listed.ends, sourced=sourced)


def _mark_replayed(pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable) -> None:
    """Commit the marks of a replay that crashed between its commits to bronze and to quarantine."""
    app = Txn.REPLAY.of(table_id(bronze))
    batch = counter(bronze, Txn.REPLAY)
    files, rewritten = _stage_marks(pipeline, bronze, quarantine, batch)
    info = {"replayed_batch": str(batch)}
    _commit(pipeline, quarantine, files, rewritten, txns(quarantine, [app]), {app: batch}, info)


def _stage_marks(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, batch: int
) -> tuple[list[StagedFile], frozenset[str]]:
    """Files with the rows of that batch marked, and the paths of the files that they replace."""
    came = read_files(pipeline.spark, files_with(bronze, batch - 1), spark_schema(bronze.schema()))
    came = came.where(F.col("_batch") == batch).select(*COORDINATES, F.lit(table_id(bronze)).alias("_table"))
    replayed = F.col("_table").isNotNull() & (F.col("layer") == Layer.BRONZE)
    held = quarantine_rows(pipeline, paths(quarantine)).where(F.col("layer") == Layer.BRONZE)
    touched = held.select(*COORDINATES, file_name()).join(came, list(COORDINATES), "left_semi")
    return marked_files(pipeline, quarantine, touched, came, replayed, batch)


def file_name() -> Column:
    """Name of the file of each row, as the column `_file`."""
    return F.col("_metadata.file_name").alias("_file")


def marked_files(
    pipeline: Pipeline, quarantine: DeltaTable, touched: DataFrame, marks: DataFrame, replayed: Column, batch: int
) -> tuple[list[StagedFile], frozenset[str]]:
    """Files with rows of quarantine marked as replayed, and the paths of the files that they replace.

    `touched`: names (`_file`) of the files with such rows. `marks` are joined by the columns that quarantine has, too; then
    `replayed` is the condition on rows to mark, and `_table` their value of `replayed_table`.
    """
    names = {row["_file"] for row in touched.select("_file").distinct().collect()}
    rewritten = frozenset(path for path in paths(quarantine) if path.rpartition("/")[2] in names)
    keys = [name for name in marks.columns if name in pipeline.quarantine_columns(quarantine).names]
    rows = quarantine_rows(pipeline, rewritten).join(marks, keys, "left")
    values = {"replayed_table": F.col("_table"), "replayed_batch": F.lit(batch), "replayed_at": F.current_timestamp()}
    rows = rows.withColumns({n: F.when(replayed, value).otherwise(F.col(n)) for n, value in values.items()})
    return _write(pipeline, rows), rewritten


def lists(table: Table, last: int | None = None) -> Iterator[tuple[int, ResetList]]:
    """(Ticket, list) of each list that there is, up to a last ticket: later ones may be half written."""
    system, prefix = file_system(table)
    infos = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=False, allow_not_found=True))
    for ticket in [int(match[1]) for info in infos if (match := _LIST.fullmatch(info.base_name))]:
        listed = read_list(table, ticket) if last is None or ticket <= last else None
        if listed is not None:
            yield ticket, listed


def keep(table: Table, ticket: int, listed: ResetList) -> None:
    """Write a list."""
    system, prefix = writable_file_system(table)
    body = {
        "batch": listed.batch,
        "ends": [[*partition, end] for partition, end in sorted(listed.ends.items())],
        "files": [f.to_json() for f in listed.files],
        "origins": sorted(listed.origins),
    }
    written = json.dumps(body).encode()
    # With a buffer for all of it: delta-rs's streams to object stores refuse what Arrow passes on without copying it.
    with system.open_output_stream(prefix + _name(ticket), buffer_size=len(written) + 1) as sink:
        sink.write(written)


def forget(table: Table, ticket: int, files: list[StagedFile]) -> None:
    """Delete the list of a finished or abandoned full refresh and its files; a committed refresh has copied them."""
    table.require_writable()
    system, prefix = file_system(table)
    discard(table, files)
    try:
        system.delete_file(prefix + _name(ticket))
    except FileNotFoundError:
        return


def read_list(table: Table, ticket: int) -> ResetList | None:
    """The list of a ticket; None if there is none."""
    system, prefix = file_system(table)
    try:
        with system.open_input_file(prefix + _name(ticket)) as source:
            body = json.loads(source.read())
    except FileNotFoundError:
        return None
    ends = {Partition(*partition): int(end) for *partition, end in body["ends"]}
    origins = frozenset(Partition(*partition) for partition in body["origins"])
    return ResetList(int(body["batch"]), ends, [StagedFile.from_json(text) for text in body["files"]], origins)


def _name(ticket: int) -> str:
    # Readers and vacuum skip files with a leading underscore.
    return f"_full_refresh-{ticket}.json"


def sweep(pipeline: Pipeline) -> None:
    """Delete the lists and files of full refreshes that were killed before their commit: bronze has a later ticket.

    Lists with later tickets than bronze's may belong to a refresh under way.
    """
    bronze = pipeline.open_bronze()
    quarantine = pipeline.open_quarantine()
    if bronze is None or quarantine is None or not is_finished(bronze, quarantine):
        return
    held = set(paths(quarantine))
    for ticket, listed in lists(pipeline.quarantine, counter(bronze, Txn.FULL_REFRESH)):
        forget(pipeline.quarantine, ticket, [f for f in listed.files if f.path not in held])


def listed_files(pipeline: Pipeline, older_than_s: float, *, dry_run: bool = False) -> list[str]:
    """Names of the files in lists of full refreshes; abandoned lists are deleted with their files.

    A list is abandoned if bronze does not have its ticket and it is older than `older_than_s` seconds.
    """
    wanted = txn(pipeline.open_bronze(), Txn.FULL_REFRESH)
    names: list[str] = []
    for ticket, listed in lists(pipeline.quarantine):
        # A ticket is the time it was made, in microseconds since 1970.
        if ticket != wanted and ticket / 1e6 < time.time() - older_than_s:
            if not dry_run:
                forget(pipeline.quarantine, ticket, listed.files)
        else:
            names += [f.path for f in listed.files]
    return names


def intact_tables(pipeline: Pipeline, report: RunReport) -> tuple[DeltaTable, DeltaTable | None] | None:
    """Open bronze and quarantine (None: there is none) and check that no row of them is missing; None: there is no bronze.

    If the run continues without a deleted quarantine, `report` gets a notice, once.

    Raises:
        DataError: one of them was restored, or is an older copy; or quarantine was deleted, and the setting does not allow to
            go on.
    """
    bronze = pipeline.open_bronze()
    if bronze is None:
        return None
    bronze = _refuse_older_bronze(pipeline, refuse_restored(pipeline.bronze, bronze))
    quarantine = pipeline.open_quarantine()
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
        info = {"quarantine_gone": f"{rows} records"}
        app = Txn.RECORDS_QUARANTINED
        advance: dict[str, int] = {app: 0, Txn.QUARANTINE_COMMITS: 0}
        commit(without_rows(pipeline.bronze, bronze, info, expect_transactions={app: rows}, set_transactions=advance))
    return pipeline.open_bronze() or bronze, None


def _refuse_older_bronze(pipeline: Pipeline, bronze: DeltaTable) -> DeltaTable:
    """A version of bronze that has all batches that silver has; DataError if it is an older copy, which lacks some."""
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
    """DataError for an older copy of quarantine, without records that bronze counts; it was opened after bronze."""
    made = counter(quarantine, Txn.MICRO_BATCHES)
    known = counter(bronze, Txn.QUARANTINE_COMMITS)
    if made < known:
        raise DataError(
            f"{pipeline.quarantine.name} is an older copy: {pipeline.bronze.name} counts {known:,} commits to it, it has "
            f"{made:,}. Records with committed offsets are missing: no run reads them again. Nothing was done. To go on, put "
            f"back its newest copy, or the copies of all tables of that time; or delete the table and run {REBUILD}"
        )
