"""One run over all layers, or over selected ones, for Dagster's jobs and assets and the command line.

Users select layers and games by names of layers, asset keys or tables, in any order; the run keeps the order of the layers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import functions as F

from game_events.config.type_names import game_of
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.group import opened
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, expired_rows, games_of
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.tables import (
    BRONZE,
    QUARANTINE,
    REFRESHED,
    UNIFIED,
    Layer,
    game_of_gold,
    game_of_silver,
    gold_name,
    gold_of_all,
    silver_name,
)
from game_events.pipeline.bronze.full_refresh import refuse_unless_allowed, replace_bronze
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quality import Decisions
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import Replayed, replay, replay_what_became_known
from game_events.pipeline.runs.pending import find_lost_tables
from game_events.pipeline.silver.admission import due
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.source import SourceSnapshot
from game_events.spark.failures import storage_named

#: Every layer; as a full refresh: every layer that may be replaced.
ALL = "all"


#: None: every game.
Games = frozenset[str] | None
Parts = Mapping[str, Games]


@dataclass(frozen=True)
class Selection:
    """Layers and games of a run.

    `update`: layer -> games to refresh; a custom aggregate is a layer `gold:{name}`. `full`: layer -> games with tables to
    replace from the layer before. `everything`: the user has left out no layer and no game, so the run also refreshes what
    `update` does not name (custom aggregates), and searches all tables.
    """

    update: Parts = field(default_factory=lambda: dict.fromkeys(REFRESHED))
    full: Parts = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    everything: bool = False


#: The default.
EVERYTHING = Selection(everything=True)


def selection_of(
    pipeline: Pipeline, select: Collection[str] = (), games: Collection[str] = (), full_refresh: Collection[str] = ()
) -> Selection:
    """A selection from the user's options.

    `select`: names to refresh; empty: every layer. `games`: silver and gold of these games only; empty: every game.
    `full_refresh`: names to replace, selected or not; `all`: every layer, bronze only if the setting allows it.

    Raises:
        ConfigurationError: an unknown name; the text lists the known ones.
    """
    names = _Names(pipeline)
    chosen = names.games(games)
    update = names.parts("--select", select or (ALL,), chosen)
    full = names.parts("--full-refresh", full_refresh, chosen)
    notices: tuple[str, ...] = ()
    # Unless bronze itself is named, `all` replaces no table with other games, and no protected bronze.
    if ALL in full_refresh and Layer.BRONZE not in map(names.wholes.get, full_refresh):
        if chosen is not None:
            full = {layer: of for layer, of in full.items() if layer not in (Layer.BRONZE, Layer.UNIFIED)}
        elif not pipeline.settings.allow_bronze_full_refresh:
            del full[Layer.BRONZE]
            protected = f"{pipeline.bronze.name} is protected and was not replaced (GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH)"
            notices = (f"{protected}; it took new records as usual",)
    return Selection(_united(update, full), full, notices, everything=chosen is None and (not select or ALL in select))


def _united(one: Parts, other: Parts) -> dict[str, Games]:
    """Union, in the order of the layers; custom aggregates last."""
    united: dict[str, Games] = {}
    for layer in (*REFRESHED, *sorted((one.keys() | other.keys()) - set(REFRESHED))):
        parts = [p[layer] for p in (one, other) if layer in p]
        if parts:
            united[layer] = None if None in parts else frozenset().union(*(p for p in parts if p is not None))
    return united


class _Names:
    """The names that a user may select."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._own = pipeline.extensions.aggregates
        called = pipeline.settings.names
        partitioned = pipeline.lakehouse.is_partitioned
        #: Name -> whole layer. Quarantine is written together with bronze; if games share their tables, unified is gold.
        self.wholes: dict[str, str] = {
            **{layer: layer for layer in REFRESHED},
            called.name_of(BRONZE): Layer.BRONZE,
            called.name_of(QUARANTINE): Layer.BRONZE,
            called.asset(called.silver_asset): Layer.SILVER,
            called.asset(called.gold_asset): Layer.GOLD,
            called.name_of(UNIFIED): Layer.GOLD if partitioned else Layer.UNIFIED,
            **{a.asset: a.layer for a in self._own},
        }
        if partitioned:
            self.wholes |= {called.name_of(gold_of_all(a.name)): a.layer for a in self._own}

    def games(self, words: Collection[str]) -> Games:
        """Validated names of games; None if there are none."""
        unknown = sorted(set(words) - self._all_games) if words else []
        if unknown:
            raise ConfigurationError(f"--games: there is no {', '.join(map(repr, unknown))}; {self._what_games()}")
        return frozenset(words) or None

    def parts(self, option: str, words: Collection[str], games: Games) -> dict[str, Games]:
        """Layer -> games of some names."""
        by_layer: dict[str, Games] = {}
        for word in words:
            for layer, of in self._meaning(option, word):
                narrowed = of
                if games is not None and layer not in (Layer.BRONZE, Layer.UNIFIED):
                    narrowed = games if of is None else of & games
                    if not narrowed:
                        raise ConfigurationError(f"{option}: {word} is of none of the games of --games: name it there too")
                by_layer = _united(by_layer, {layer: narrowed})
        return by_layer

    def _meaning(self, option: str, word: str) -> Iterable[tuple[str, Games]]:
        if word in (ALL, Layer.GOLD):
            layers = REFRESHED if word == ALL else (Layer.GOLD,)
            return [(layer, None) for layer in (*layers, *(a.layer for a in self._own))]
        if word in self.wholes:
            return [(self.wholes[word], None)]
        key = self._pipeline.lakehouse.key(word)
        tables = [(Layer.SILVER, game_of_silver(key)), (Layer.GOLD, game_of_gold(key))]
        for layer, game in (*tables, *((a.layer, game_of_gold(key, a.name)) for a in self._own)):
            if game is not None and game in self._all_games:
                return [(layer, frozenset({game}))]
        raise self._unknown(option, word)

    def _unknown(self, option: str, word: str) -> ConfigurationError:
        called = self._pipeline.settings.names
        template = f"{{{called.entity}}}"
        keys = (silver_name(template), gold_name(template), *(gold_name(template, a.name) for a in self._own))
        return ConfigurationError(
            f"{option}: there is no {word!r}. There are the layers {', '.join(REFRESHED)} (or {ALL}), the assets "
            f"{', '.join(name for name in self.wholes if name not in REFRESHED)}, and the tables "
            f"{', '.join(map(called.name_of, keys))}; {self._what_games()}"
        )

    @cached_property
    def _all_games(self) -> frozenset[str]:
        """Games with tables, games of the allow list, and names in bronze without a table."""
        allowed = frozenset(self._pipeline.settings.games)
        known = frozenset(games_of(self._pipeline.lakehouse)) | due(self._pipeline).rows.keys() | allowed
        return known & allowed if allowed else known

    def _what_games(self) -> str:
        games = sorted(self._all_games)
        return f"games: {', '.join(games)}" if games else "there are no games yet: the first run finds them"


#: Name of the step of the aggregates that users defined.
OWN_GOLD = "own_gold"


def refresh(
    pipeline: Pipeline,
    report: RunReport | None = None,
    selection: Selection = EVERYTHING,
    *,
    ignore_intervals: bool = False,
    one_pass: OnePass | None = None,
) -> RunReport:
    """Triggered mode: read the source up to its current end, then refresh the selected layers.

    The report gets the result of each step, so that it is complete if a later step fails. `ignore_intervals`: refresh custom
    aggregates before their interval has passed, too. `one_pass`: what the steps hold for each other; None: nothing yet.

    Raises:
        ConfigurationError: a full refresh of bronze is not allowed; nothing was changed.
        GameEventsError: the run cannot continue (broker, registry, settings); what was committed stays, and the next run
            continues from there. A game that fails alone is in the report instead.
    """
    begun = RunReport() if report is None else report
    run = TriggeredRun(pipeline, begun, selection, ignore_intervals, one_pass or OnePass())
    with storage_named(pipeline.lakehouse.root):
        for step in run.steps.values():
            step()
    return run.report


@dataclass
class TriggeredRun:
    """As `refresh`, step by step: each one finds in the tables what is left to do, whatever was done before it.

    A table whose full refresh fails stays as it is in this run, also if an update could add rows: the run reports the failure,
    and no commit beside it looks like success. The next run updates it as usual.

    `until`: of a cycle of continuous mode, which takes one micro-batch: a recent snapshot of the source.
    """

    pipeline: Pipeline
    report: RunReport
    selection: Selection = EVERYTHING
    ignore_intervals: bool = False
    one_pass: OnePass = field(default_factory=OnePass)
    until: SourceSnapshot | None = None

    @property
    def steps(self) -> Mapping[str, Callable[[], None]]:
        """Name -> step, in their order: the layers, then the aggregates that users defined."""
        return {
            Layer.BRONZE: self.bronze,
            Layer.SILVER: self.silver,
            Layer.GOLD: self.gold,
            Layer.UNIFIED: self.unified,
            OWN_GOLD: self.own_gold,
        }

    def bronze(self) -> None:
        """Read the source up to its current end; replace bronze first, if that was selected and is allowed."""
        chosen = self.selection
        if chosen.everything and self.until is None:  # continuous mode searches at intervals
            find_lost_tables(self.pipeline, self.report)
        self.report.warn(*chosen.notices)
        if Layer.BRONZE in chosen.full:
            refuse_unless_allowed(self.pipeline)
            replace_bronze(self.pipeline, self.report)
        if Layer.BRONZE in chosen.update:
            with self.one_pass.dropped_on_error():
                most = 1 if self.until is not None else None
                load_bronze(self.pipeline, self.report, self.until, most, self._one_pass)
            if self.until is None:
                self.replay()

    def replay(self) -> None:
        """Replay rows of quarantine that decode by now; in continuous mode a step of its own."""
        if Layer.BRONZE in self.selection.update:
            with self.one_pass.dropped_on_error():
                replay_what_became_known(self.pipeline, self.report)

    def silver(self) -> None:
        """Bring the games' silver tables up to bronze; first the full refreshes."""
        update = self.selection.update
        full = self.selection.full
        failed: Mapping[str, str] = {}
        # After a full refresh of bronze, silver is replaced in any case.
        if Layer.SILVER in full and not (Layer.BRONZE in full and full[Layer.SILVER] is None):
            failed = refresh_silver(self.pipeline, self.report, full[Layer.SILVER], full=True)
        if Layer.SILVER in update:
            with self.one_pass.used():
                one_pass = self._one_pass
                refresh_silver(self.pipeline, self.report, update[Layer.SILVER], not_replaced=failed, one_pass=one_pass)
            if update[Layer.SILVER] is None:
                self.report.visible(Layer.SILVER)

    def gold(self) -> None:
        """Bring the games' tables of the built-in aggregate up to silver; first the full refreshes."""
        update = self.selection.update
        full = self.selection.full
        failed: Mapping[str, str] = {}
        if Layer.GOLD in full:
            failed = refresh_gold(self.pipeline, self.report, full[Layer.GOLD], full=True)
        if Layer.GOLD in update:
            one_pass = self.one_pass
            refresh_gold(self.pipeline, self.report, update[Layer.GOLD], not_replaced=failed, one_pass=one_pass)
            if self._whole:
                self.report.visible(Layer.GOLD)

    def unified(self) -> None:
        """Bring the table over all games up to the games' gold tables."""
        if Layer.UNIFIED in self.selection.update:
            refresh_unified(self.pipeline, self.report, full=Layer.UNIFIED in self.selection.full)
            if self._whole:
                self.report.visible(Layer.UNIFIED)

    def own_gold(self) -> None:
        """Bring the tables of the aggregates that users defined up to silver; first the full refreshes."""
        full = self.selection.full
        failed = dict[str, Mapping[str, str]]()
        for aggregate in self.pipeline.extensions.aggregates:
            layer = aggregate.layer
            if layer in full:
                failed[layer] = refresh_gold(self.pipeline, self.report, full[layer], full=True, aggregate=aggregate)
        chosen = None if self.selection.everything else self.selection.update
        intervals = self.ignore_intervals
        refresh_own_gold(self.pipeline, self.report, chosen, ignore_intervals=intervals, not_replaced=failed)

    @property
    def _one_pass(self) -> OnePass | None:
        """Where silver follows bronze for all games."""
        update = self.selection.update
        full = self.selection.full
        follows = Layer.BRONZE in update and Layer.SILVER in update and update[Layer.SILVER] is None and not full
        return self.one_pass if follows else None

    @property
    def _whole(self) -> bool:
        """Whether all games are refreshed: latencies are measured only then."""
        update = self.selection.update
        return all(layer in update and update[layer] is None for layer in (Layer.SILVER, Layer.GOLD))


def cycle(
    pipeline: Pipeline,
    report: RunReport,
    *,
    until: SourceSnapshot,
    gold: bool,
    go_on: Callable[[], bool],
    one_pass: OnePass,
) -> None:
    """One cycle of continuous mode: a micro-batch to bronze, bronze to silver, silver to gold and the unified table.

    `until`: a recent snapshot of the source. `gold`: False leaves gold and the unified table for later. `go_on`: called after
    each step; False ends the cycle there, and the next one continues from its commits. `one_pass`: what the cycles of this
    process hold.
    """
    run = TriggeredRun(pipeline, report, one_pass=one_pass, until=until)
    steps = [run.bronze, run.replay, run.silver, *([run.gold, run.unified, run.own_gold] if gold else [])]
    for step in steps:
        step()
        if not go_on():
            return


def refresh_downstream(
    pipeline: Pipeline, report: RunReport, *, full: bool = False, not_replaced: Mapping[str, str] | None = None
) -> None:
    """Refresh silver, gold and the unified table; `full`: replace every game's rows from bronze.

    Gold detects a replaced silver table, after a crash too. `not_replaced`: as for `refresh_silver`.
    """
    refresh_silver(pipeline, report, full=full, not_replaced=not_replaced or {})
    report.visible(Layer.SILVER)
    run = TriggeredRun(pipeline, report)
    run.gold()
    run.unified()
    run.own_gold()


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
    gone = expired_rows(pipeline.open_quarantine())
    if gone:
        report.warn(f"{gone:,} rows of {pipeline.quarantine.name} were removed by age so far: these cannot be replayed")
    games = _games_kept_out_of(pipeline, selection.rules) if selection.rejected else frozenset()
    failed = refresh_silver(pipeline, report, games, full=True) if games else {}
    refresh_downstream(pipeline, report, not_replaced=failed)
    return done


def _games_kept_out_of(pipeline: Pipeline, rules: frozenset[str]) -> frozenset[str]:
    """Games with rows that these rules (empty: any rule) reject.

    Dropped rows are counted per game, not per rule: without a rule, or with one that has no row in quarantine, every game with
    dropped rows is included.
    """
    bronze = pipeline.open_bronze()
    if bronze is None:
        return frozenset()
    bronze_key = BronzeIdentity.of(bronze).key
    decisions = Decisions.read(pipeline, bronze_key)
    games_of = _games_by_rule(pipeline, decisions)
    games = {game for rule in rules or games_of for game in games_of.get(rule, ())}
    if not rules or rules - games_of.keys():
        known = pipeline.progress.read(bronze_key).games
        listed = pipeline.lakehouse.type_tables()
        names = [*known, *(name for game in known for name in listed.get(game, ()))]
        dropped = Counter[str]()
        for name, table in opened(names, pipeline.lakehouse.silver).items():
            dropped[game_of(name)] += counter(table, Txn.ROWS_DROPPED)
        games |= (+dropped).keys()
    return frozenset(games)


def _games_by_rule(pipeline: Pipeline, decisions: Decisions) -> dict[str, set[str]]:
    """Rule -> games with rows in quarantine that it rejected."""
    games_of: dict[str, set[str]] = {}
    if decisions.handle is not None and decisions.rejected_rows:
        rows = read_table(pipeline.spark, decisions.handle)
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull())
        for row in rows.select("reason", "game").distinct().collect():
            games_of.setdefault(row["reason"], set()).add(row["game"])
    return games_of
