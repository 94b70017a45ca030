"""One run over all layers, or over selected ones, for Dagster's jobs and assets and the command line."""

from collections.abc import Callable

from pyspark.sql import functions as F

from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import opened
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.layers import Layer
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.bronze.full_refresh_guard import refuse_unless_allowed
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.auto_replay import replay_what_became_known
from game_events.pipeline.reprocessing.replay import Replayed, replay
from game_events.pipeline.reprocessing.selection import ReplaySelection
from game_events.pipeline.runs.lost_tables import find_lost_tables
from game_events.pipeline.runs.selection import EVERYTHING, Selection
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.core.source import SourceSnapshot
from game_events.spark.storage_errors import storage_named


def refresh(
    pipeline: Pipeline,
    report: RunReport | None = None,
    selection: Selection = EVERYTHING,
    *,
    ignore_intervals: bool = False,
) -> RunReport:
    """Triggered mode: read the source up to its current end, then refresh the selected layers.

    The report gets the result of each step, so that it is complete if a later step fails. `ignore_intervals`: refresh custom
    aggregates before their interval has passed, too.

    Raises:
        ConfigurationError: a full refresh of bronze is not allowed; nothing was changed.
        GameEventsError: the run cannot continue (broker, registry, settings); what was committed stays, and the next run
            continues from there. A game that fails alone is in the report instead.
    """
    report = RunReport() if report is None else report
    with storage_named(pipeline.lakehouse.root):
        if selection == EVERYTHING:
            find_lost_tables(pipeline, report)
            cycle(pipeline, report, ignore_intervals=ignore_intervals)
        else:
            _selected(pipeline, report, selection, ignore_intervals=ignore_intervals)
    return report


def _selected(pipeline: Pipeline, report: RunReport, selection: Selection, *, ignore_intervals: bool) -> None:
    report.warn(*selection.notices)
    if Layer.BRONZE in selection.full:
        refuse_unless_allowed(pipeline)
        replace_bronze(pipeline, report)
    if Layer.BRONZE in selection.update:
        load_bronze(pipeline, report)
        replay_what_became_known(pipeline, report)
    refresh_selected(pipeline, report, selection, ignore_intervals=ignore_intervals)


def cycle(
    pipeline: Pipeline,
    report: RunReport,
    *,
    until: SourceSnapshot | None = None,
    max_commits: int | None = None,
    gold: bool = True,
    ignore_intervals: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """One cycle of both modes: micro-batches to bronze, bronze to silver, silver to gold and the unified table.

    `until`: a recent snapshot of the source; None: take one. `max_commits`: most commits of bronze. `gold`: False leaves gold
    and the unified table for later. `ignore_intervals`: refresh custom aggregates before their interval has passed, too.
    `go_on`: called between the steps; False ends the cycle there, and the next one continues from its commits.
    """
    load_bronze(pipeline, report, until, max_commits)
    if not go_on():
        return
    replay_what_became_known(pipeline, report)
    refresh_downstream(pipeline, report, gold=gold, ignore_intervals=ignore_intervals, just_loaded=True, go_on=go_on)


def refresh_downstream(
    pipeline: Pipeline,
    report: RunReport,
    *,
    full: bool = False,
    gold: bool = True,
    ignore_intervals: bool = False,
    just_loaded: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Refresh silver, gold and the unified table; `full`: replace every game's rows from bronze.

    Gold detects a replaced silver table, after a crash too. `gold` and `go_on` as for `cycle`, `just_loaded` as for
    `refresh_silver`.
    """
    refresh_silver(pipeline, report, full=full, just_loaded=just_loaded)
    report.visible(Layer.SILVER)
    if gold and go_on():
        refresh_gold(pipeline, report)
        report.visible(Layer.GOLD)
        refresh_unified(pipeline, report)
        report.visible(Layer.UNIFIED)
        refresh_own_gold(pipeline, report, ignore_intervals=ignore_intervals)


def refresh_selected(pipeline: Pipeline, report: RunReport, selection: Selection, *, ignore_intervals: bool = False) -> None:
    """Refresh the selected layers after bronze, in order: per layer first the full refreshes."""
    update, full = selection.update, selection.full
    # Latencies are measured only if all games are refreshed.
    whole = all(layer in update and update[layer] is None for layer in (Layer.SILVER, Layer.GOLD))
    # After a full refresh of bronze, silver is replaced in any case.
    if Layer.SILVER in full and not (Layer.BRONZE in full and full[Layer.SILVER] is None):
        refresh_silver(pipeline, report, full[Layer.SILVER], full=True)
    if Layer.SILVER in update:
        refresh_silver(pipeline, report, update[Layer.SILVER])
        if update[Layer.SILVER] is None:
            report.visible(Layer.SILVER)
    if Layer.GOLD in full:
        refresh_gold(pipeline, report, full[Layer.GOLD], full=True)
    if Layer.GOLD in update:
        refresh_gold(pipeline, report, update[Layer.GOLD])
        if whole:
            report.visible(Layer.GOLD)
    if Layer.UNIFIED in update:
        refresh_unified(pipeline, report, full=Layer.UNIFIED in full)
        if whole:
            report.visible(Layer.UNIFIED)
    for aggregate in pipeline.extensions.aggregates:
        if aggregate.layer in full:
            refresh_gold(pipeline, report, full[aggregate.layer], full=True, aggregate=aggregate)
    chosen = None if selection == EVERYTHING else update
    refresh_own_gold(pipeline, report, chosen, ignore_intervals=ignore_intervals)


def replay_and_refresh(pipeline: Pipeline, report: RunReport, selection: ReplaySelection) -> Replayed:
    """Retry rows of quarantine, undecodable and rejected ones, then refresh every layer.

    Guarantee: each affected game's silver table is rebuilt from bronze in one commit, after one commit of quarantine with the
    decisions: accepted rows are marked, newly rejected rows are added, the others are not changed. A crash between the two is
    finished by the next run. Gold follows.

    Raises:
        ConflictError: concurrent writers won every attempt.
        TransientError: the registry is unavailable, and a schema is not archived.
    """
    done = replay(pipeline, report, selection) if selection.undecodable else Replayed()
    games = games_kept_out_of(pipeline, selection.rules) if selection.rejected else frozenset()
    if games:
        refresh_silver(pipeline, report, games, full=True)
    refresh_downstream(pipeline, report)
    return done


def games_kept_out_of(pipeline: Pipeline, rules: frozenset[str]) -> frozenset[str]:
    """Games with rows that these rules (empty: any rule) reject.

    Dropped rows are counted per game, not per rule: without a rule, or with one that has no row in quarantine, every game with
    dropped rows is included.
    """
    bronze = pipeline.bronze.open()
    if bronze is None:
        return frozenset()
    bronze_key = BronzeIdentity.of(bronze).key
    decisions = Decisions.read(pipeline, bronze_key)
    found: dict[str, set[str]] = {}
    if decisions.handle is not None and decisions.rejected_rows:
        rows = read_table(pipeline.spark, decisions.handle)
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull())
        for row in rows.select("reason", "game").distinct().collect():
            found.setdefault(row["reason"], set()).add(row["game"])
    games = {game for reason, of_reason in found.items() if not rules or reason in rules for game in of_reason}
    if not rules or rules - set(found):
        known = pipeline.progress.read(bronze_key).games
        games |= {game for game, table in opened(known, pipeline.lakehouse.silver).items() if counter(table, Txn.ROWS_DROPPED)}
    return frozenset(games)
