"""Commits of silver's staged rows: rules that fail, then quarantine's rejections, then one commit for each game."""

from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.incarnations import BronzeIdentity, erasures
from game_events.lakehouse.commits.parallel import Committed, commit_games
from game_events.lakehouse.commits.transactions import Txn, counter, txn, txns
from game_events.lakehouse.data.snapshot import BATCH_INFO
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import table_id, version_of
from game_events.pipeline.column_comments import message_comment
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.quality.worker import failed_rules
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.tables import RuleCounts
from game_events.pipeline.silver.rejections import decide_rejections, next_incarnation
from game_events.pipeline.silver.stage import SilverInput, Start


def settle(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, Start], result: FanOutResult, report: RunReport
) -> Committed:
    """Commit what was staged for the games of `starts`.

    Quarantine's commit comes first: it decides which rows are rejected, for silver's commits, this run's or a later one's.

    | case | game | its staged files |
    |---|---|---|
    | staging failed, or a rule with the action `fail` is violated | failed | deleted |
    | bronze has other contents since it was read, or a data subject was erased from it | retry | deleted |
    | a concurrent run has decided on the game's rejections, or quarantine is another table | retry | deleted |
    | a data subject was erased from the silver table since bronze was read | retry | deleted |
    | the silver table is not at the batch that was planned from | retry | deleted by the commit |
    | else | committed | in quarantine and silver |
    """
    rules, failed = source.rules.rules, dict[str, str]()
    for game in starts:
        why = result.failed.get(game) or failed_rules(rules, result.counts.get(game))
        if why is not None:
            failed[game] = why
            if game in result.counts:
                report.add_rules(Layer.SILVER, game, rules, result.counts[game])
    ready = {game: start for game, start in starts.items() if game not in failed}
    current = _is_current(source)
    retry = decide_rejections(source, decisions, ready, result, report) if current else set(ready)
    for game in {*retry, *failed}:  # `decide` has deleted the rejected rows of the games that it returned
        drop(source.pipeline, result, game, quarantine=game in failed or not current)
    plans = {g: partial(_commit_plan, source, decisions, g, s, result) for g, s in ready.items() if g not in retry}
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    for game, landed in sorted(committed.landed.items()):
        counts, table = result.counts.get(game), source.pipeline.lakehouse.silver(game)
        source.pipeline.handles.keep(table, landed.handle)
        schema = _columns(source, starts[game], result, game)
        report.add_landed(Layer.SILVER, table, landed, schema, source.batch, game, counts=counts)
        if counts is not None:
            report.add_rules(Layer.SILVER, game, rules, counts)
    committed.again |= retry
    committed.failed |= failed
    return committed


def _columns(source: SilverInput, start: Start, result: FanOutResult, game: str) -> pa.Schema:
    """Columns of a game's table after its commit; rows that replace all others bring their own."""
    sent = result.columns.get(game, frozenset())
    return source.columns_for(sent, None if start.replace and sent else start.handle)


def _is_current(source: SilverInput) -> bool:
    """Whether bronze has the same contents and erasures as the version that was read."""
    bronze = source.pipeline.bronze.open()
    same = bronze is not None and BronzeIdentity.of(bronze) == source.bronze
    return same and erasures(bronze) == erasures(source.handle)


def drop(pipeline: Pipeline, result: FanOutResult, game: str, *, quarantine: bool = True) -> None:
    """Delete a game's staged files: of silver, and of quarantine unless they are deleted already."""
    discard(pipeline.lakehouse.silver(game), result.files.pop(game, []))
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(pipeline.quarantine, rejected)
    result.counts.pop(game, None)


def _commit_plan(source: SilverInput, decisions: Decisions, game: str, start: Start, result: FanOutResult) -> Commit | None:
    """The commit of one game; None: plan it again."""
    handle = start.handle
    if source.bronze.erased(handle) > erasures(source.handle):
        # The staged rows may be of a data subject who was erased after bronze was read.
        drop(source.pipeline, result, game, quarantine=False)
        return None
    advance = {source.bronze.app: source.batch}
    if start.replace or handle is None:
        advance |= {Txn.INCARNATION: target} if (target := next_incarnation(decisions, game, start)) else {}
    counts = result.counts.get(game, RuleCounts())
    for app, rows in ((Txn.ROWS_DROPPED, counts.dropped), (Txn.ROWS_QUARANTINED, counts.quarantined)):
        if rows or txn(handle, app) is not None:
            advance[app] = rows + (0 if start.replace else counter(handle, app))
    word = source.pipeline.settings.names.entity
    return Commit(
        source.pipeline.lakehouse.silver(game),
        _columns(source, start, result, game),
        result.files.get(game, []),
        # Of `bronze.app` the value in the log, even if it is of other contents of bronze.
        expected=txns(handle, (source.bronze.app, Txn.INCARNATION, Txn.ERASURES)),
        advance=advance,
        table_id=table_id(handle),
        follows=handle,
        # If all its rows are replaced, it does not matter whether it was restored.
        seen=None if start.replace else version_of(handle),
        replace=start.replace and handle is not None,
        # All rows are new: columns may go and types may change.
        reshape=start.replace,
        info={BATCH_INFO: str(source.batch), "run_id": source.pipeline.run_id},
        description=f"Events of the {word} {game}: its rows of {source.pipeline.bronze.name}, append-only"
        f"{message_comment(source.handle)}",
    )
