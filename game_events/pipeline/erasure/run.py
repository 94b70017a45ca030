"""Forgetting gamers: their rows go from every table, and what still comes of them is kept out.

Guarantee: what is committed first is whom to keep out; from then on nothing of theirs comes to bronze. The rows of a table go
in one commit, quarantine's before bronze's (whose rows lead to them), silver's behind it; gold follows silver as after any
change of its rows. A crash in between is finished by the same command, run again. Offsets, batches and floors stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from deltalake import DeltaTable

from game_events.errors import ConfigurationError, ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures, oldest_batch
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.suppressed import HASH_CHARS, add_suppressed, finish_suppressed, read_suppressed
from game_events.lakehouse.tables import (
    BRONZE,
    EVENT_LOG,
    PROGRESS,
    QUARANTINE,
    SCHEMAS,
    SUPPRESSED,
    game_of_silver,
    has_persons,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.commits import without
from game_events.pipeline.erasure.passes import erase_events
from game_events.pipeline.erasure.state import Work, find_what_is_gone
from game_events.pipeline.erasure.subjects import Wanted
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quarantine.full_refresh import finish_reset
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.quarantine.replay_marks import note_replay
from game_events.pipeline.reporting.erasure_result import Erasure
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.suppression.driver import hashes_of, required_key

#: Times that tables are looked at again, for files that rivals added or rewrote meanwhile.
PASSES = 30
#: Tables of the pipeline's own, which hold no row of anybody.
_OWN = (SCHEMAS, PROGRESS, EVENT_LOG, SUPPRESSED)


def forget(
    pipeline: Pipeline,
    report: RunReport,
    ids: frozenset[str],
    *,
    dry_run: bool = False,
    hashes: frozenset[str] = frozenset(),
) -> Wanted:
    """Erase gamers.

    Args:
        pipeline: the parts.
        report: gets the account (`erasure`), and entries of the gold tables that follow.
        ids: who, as texts.
        dry_run: count only.
        hashes: of them all, where not every id is known any more.

    Returns:
        whom, and which records, to look for in files of older versions (`erasure_files`).

    Raises:
        ConfigurationError: no key, or another one than the list was made with.
        ConflictError: rivals won every attempt; run it again.
        DataError: bronze or quarantine was restored, quarantine was deleted, or an erasure of others is not finished.
            Nothing was done.
    """
    began = time.monotonic()
    settings = pipeline.settings
    key = required_key(settings)
    hashes = hashes or hashes_of(key, ids)
    account = Erasure(sorted(h[:HASH_CHARS] for h in hashes), dry_run)
    report.add(RunResult(erasure=account))
    work = Work(pipeline, report, account, Wanted(settings.key_column, settings.entity_column, ids), hashes)
    if dry_run:
        read_suppressed(pipeline.lakehouse).require_key(key)
    else:
        _keep_out(work, key)
    bronze = pipeline.bronze.open()
    if bronze is not None:
        work.wanted = replace(work.wanted, oldest_batch=oldest_batch(bronze))
        _require_id_column(pipeline, bronze)
        if work.done_before is not None:
            find_what_is_gone(work, bronze)
        _until_nothing_is_found(work, erase_events)
        if not dry_run:
            _gold_follows(work)
    _until_nothing_is_found(work, _rest)
    account.unsearchable, account.undecoded = work.unsearchable_of(QUARANTINE), work.unsearchable_of(BRONZE)
    if not dry_run and report.success:
        finish_suppressed(pipeline.lakehouse, hashes)
        account.finished = True
    report.add_seconds("erasure", time.monotonic() - began)
    return work.wanted


def _keep_out(work: Work, key: bytes) -> None:
    """Put them on the list; from here on nothing of theirs comes to bronze."""
    pipeline, report = work.pipeline, work.report
    # Before any commit to quarantine: the commit would hide a restore of the table from the next run.
    intact_tables(pipeline, report)
    finish_reset(pipeline, report)
    note_replay(pipeline)
    before = add_suppressed(pipeline.lakehouse, key, work.hashes, pipeline.run_id)
    failpoints.reach("forget_listed")
    bronze = pipeline.bronze.open()
    if bronze is not None and before.unfinished:  # of the same gamers
        work.done_before = erasures(bronze)
    _fence(pipeline)
    # What landed before the fence may have its part of quarantine still to come: rows that were made before the list.
    finish_reset(pipeline, report)
    note_replay(pipeline)


def _until_nothing_is_found(work: Work, look: Callable[[Work], bool]) -> None:
    for _ in range(PASSES):
        if not look(work):
            return
    raise ConflictError(f"rows were found, or rivals came between, {PASSES} times: run `game-events forget` again")


def _require_id_column(pipeline: Pipeline, bronze: DeltaTable) -> None:
    """Keep somebody with a wrong setting from believing that a gamer is gone."""
    if not int(bronze.transaction_version(Txn.BATCH) or 0) or not has_decoded_columns(bronze):
        return
    if not has_persons(bronze, pipeline.settings.key_column):
        raise ConfigurationError(
            f"bronze has no column {pipeline.settings.key_column!r}: set GAME_EVENTS_KEY_COLUMN to the one that says whose "
            "a row is"
        )


@retry_on_conflict()
def _fence(pipeline: Pipeline) -> None:
    """Make every run that looked before the list was changed look again: whatever it has staged does not land any more."""
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    batch = bronze.transaction_version(Txn.BATCH)
    # The batch too, as it is: of two commits that name it, Delta lets one land, however close they come.
    commit(
        without(pipeline.bronze, bronze, [], pipeline.run_id, expected={Txn.BATCH: batch}, advance={Txn.BATCH: int(batch or 0)})
    )


def _gold_follows(work: Work) -> None:
    """Gold of the games whose silver lost rows, the unified table, and aggregates of one's own: as after any such change."""
    pipeline, report = work.pipeline, work.report
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    games = frozenset(work.touched | pipeline.progress.read(BronzeIdentity.of(bronze).key).failed_in(Layer.GOLD))
    if not games:
        return
    refresh_gold(pipeline, report, games)
    refresh_unified(pipeline, report)
    chosen = {aggregate.layer: games for aggregate in pipeline.extensions.aggregates}
    refresh_own_gold(pipeline, report, chosen, ignore_intervals=True)


def _rest(work: Work) -> bool:
    """What else has a column with the id: gold, once more, and tables that nobody declares any more."""
    pipeline, tables = work.pipeline, {}
    for name in pipeline.lakehouse.names():
        if name in (*_OWN, BRONZE, QUARANTINE) or game_of_silver(name) is not None:
            continue
        handle = pipeline.lakehouse.table(name).open()
        if handle is not None and has_persons(handle, pipeline.settings.key_column):
            tables[name] = handle
    hits = work.look(tables)
    for name, found in hits.items():
        if work.account.dry_run:
            work.erased(name, found)
            continue
        commits = tables[name].transaction_version(Txn.COMMITS)
        moved: dict[str, int] = {Txn.COMMITS: commits + 1} if commits is not None else {}
        plan = without(
            pipeline.lakehouse.table(name), tables[name], found, pipeline.run_id, expected={Txn.COMMITS: commits}, advance=moved
        )
        try:
            commit(plan)
            work.erased(name, found)
        except ConflictError:
            continue  # a rival refreshed it: look again
    return bool(hits) and not work.account.dry_run
