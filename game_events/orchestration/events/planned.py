"""What a run is to materialize, for Dagster's states: materializing while it is at work, failed if it failed.

Dagster plans materializations for runs of assets only. Of a job of ops it would show nothing while its run is at work, keep a
game that failed green, and let automation start a run of its own in the middle of another one's events.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.layers import REFRESHED, Layer
from game_events.lakehouse.tables import UNIFIED, Lakehouse, Table
from game_events.orchestration.dagster_private import AssetPartitionStatus, log_planned
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.keys import Keys
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.tables import TableReport, present

#: Failed games that each run plans again, so that their partitions name the newest run.
REPLANNED = 150
#: Layers with a partition for each game.
SAME_PARTITIONS = (Layer.SILVER, Layer.GOLD)
StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True)
class PlannedLayers:
    """The layers that a run of a job of ops brings up to date; `layers`: with every game, or (False) with some only."""

    pipeline: Pipeline
    keys: Keys
    layers: Mapping[str, bool]

    @classmethod
    def all_games(cls, pipeline: Pipeline, keys: Keys, layers: Collection[str] = REFRESHED) -> Self:
        """Layers that are brought up to date for every game; gold with the aggregates that users declared."""
        own = [one.layer for one in pipeline.extensions.aggregates] if Layer.GOLD in layers else []
        return cls(pipeline, keys, dict.fromkeys([*layers, *own], True))

    def log(self, context: StepContext) -> None:
        """Plan each layer's asset as a whole, at once: which games have news is known only after the Spark job.

        So it costs a few events, however many games there are.
        """
        for layer in self.layers:
            log_planned(context, self.keys.layer(layer))

    def unchanged(self, report: RunResult, done: Collection[str]) -> Iterator[dg.AssetMaterialization]:
        """Bronze and the unified table as they are, if a run that failed elsewhere found nothing to do in them.

        Else they would be shown as failed, too. `done`: layers whose step came to its end.
        """
        tables = {Layer.BRONZE: self.pipeline.bronze, Layer.UNIFIED: self.pipeline.lakehouse.table(UNIFIED)}
        for layer, table in tables.items():
            if layer in self.layers and layer in done and not report.of(layer):
                yield from self._as_it_is(present(layer, table), report)

    def recovered(self, instance: DagsterInstance, report: RunResult) -> Iterator[dg.AssetMaterialization]:
        """Games that Dagster shows as failed, and that a run over every game has found complete without a commit.

        Another run has committed their rows, or their table was put back. Without an event they would stay failed.
        """
        aggregates = {one.layer: one for one in self.pipeline.extensions.aggregates}
        for layer, whole in self.layers.items():
            if not whole or layer in (Layer.BRONZE, Layer.UNIFIED):
                continue
            partitions = partitions_of(self.keys, aggregates.get(layer))
            games = shown_as_failed(instance, self.keys.layer(layer), partitions) - {t.game for t in report.of(layer)}
            for game in sorted(games - self._waiting(layer) if games else ()):
                yield from self._as_it_is(present(layer, game_table(self.pipeline.lakehouse, layer, game), game), report)

    def _waiting(self, layer: str) -> set[str]:
        bronze = self.pipeline.open_bronze()
        return set() if bronze is None else self.pipeline.progress.read(BronzeIdentity.of(bronze).key).failed_in(layer)

    def _as_it_is(self, found: TableReport | None, report: RunResult) -> Iterator[dg.AssetMaterialization]:
        if found is not None:
            metadata = table_metadata(found, report, self.keys)
            yield dg.AssetMaterialization(self.keys.layer(found.layer), partition=found.game, metadata=metadata)


def plan_failed(context: StepContext, report: RunResult, keys: Keys, most: int = REPLANNED) -> None:
    """Plan every table that failed, however many: exactly these are shown as failed once their run has failed.

    To be called after the run's materializations: of a table that was committed before it failed, the failure counts. `most`:
    past so many, games that an earlier run has left as failed are not planned again: an event costs 10 ms of processor time.
    """
    failed = [entry for entry in report.tables if entry.error is not None]
    known: dict[str, set[str]] = {}
    if len(failed) > most:
        known = {layer: shown_as_failed(context.instance, keys.layer(layer), keys.partitions) for layer in SAME_PARTITIONS}
    for entry in failed:
        if entry.game not in known.get(entry.layer, ()):
            log_planned(context, keys.layer(entry.layer), entry.game)


def shown_as_failed(instance: DagsterInstance, key: dg.AssetKey, partitions: dg.PartitionsDefinition[str]) -> set[str]:
    """Partitions of an asset that Dagster shows as failed."""
    games = without_result(instance, key)
    states = instance.get_status_by_partition(key, sorted(games), partitions) if games else None
    return {game for game, state in (states or {}).items() if state == AssetPartitionStatus.FAILED}


def without_result(instance: DagsterInstance, key: dg.AssetKey) -> set[str]:
    """Partitions of an asset that were planned and not materialized since: failed, canceled, or still in work."""
    newest = instance.event_log_storage.get_latest_storage_id_by_partition
    planned = newest(key, DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    done = newest(key, DagsterEventType.ASSET_MATERIALIZATION) if planned else {}
    return {game for game, at in planned.items() if at > done.get(game, 0)}


def partitions_of(keys: Keys, aggregate: GoldAggregate | None = None) -> dg.PartitionsDefinition[str]:
    """The partitions of an asset: every game; of an aggregate that a user declared for some games, these.

    So the counts of partitions are those of its tables.
    """
    return dg.StaticPartitionsDefinition(sorted(aggregate.games)) if aggregate and aggregate.games else keys.partitions


def game_table(lakehouse: Lakehouse, layer: str, game: str) -> Table:
    """A game's table; the layer of an aggregate of one's own is `gold:{name}`."""
    return lakehouse.silver(game) if layer == Layer.SILVER else lakehouse.gold(game, layer.partition(":")[2] or PLAYER_AGG)
