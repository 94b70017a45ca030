"""A run's report as Dagster events, and what it is to materialize; texts of others on Dagster's pages.

One materialization for each table that changed. With very many games not each table has an event of its own, which costs about
8 KB and 8 ms of processor time in SQLite (`benchmarks`, `bookkeeping`): Dagster's storage would cost more than the run.

Dagster shows an asset as materializing while a run is at work that has planned it, and as failed if that run failed. It plans
for runs of assets only. Of a job of ops it would show nothing while its run is at work, keep a game that failed green, and let
automation start a run of its own in the middle of another one's events: so such a job plans here (`PlannedLayers`).

Dagster shows descriptions and `MetadataValue.md` as Markdown, and cells of tables, reasons and other metadata as they are. What
others have written (names and comments of schemas, errors, compilers' words) is made plain text by `as_text` and `one_line`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Self

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from game_events.decoding.frame import ordered
from game_events.errors import many
from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import REFRESHED, REPORTED, UNIFIED, Lakehouse, Layer, Table, is_game
from game_events.orchestration.keys import DEFAULT, REPORT, AssetPartitionStatus, Keys, log_planned
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import Histogram, RunResult, TableReport, present
from game_events.sources.source import Partition

#: Names in a message, or in a sensor's reason.
NAMED = 10
#: Events of games' tables that one run logs (`with_event`).
EVENTS = 150
#: Games that are named where not each has an event.
GAMES_SHOWN = 50

AssetEvent = dg.MaterializeResult[None] | dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def add_games(instance: DagsterInstance, report: RunResult, keys: Keys = DEFAULT) -> list[str]:
    """Make partitions of the report's games that are none yet, failed ones included; returns the new ones."""
    games = sorted({t.game for t in report.tables if t.game and (t.error is None or is_game(t.game))})
    _add_types(instance, report, keys)
    return _add(instance, keys.partitions, games)


def _add_types(instance: DagsterInstance, report: RunResult, keys: Keys) -> None:
    """Make partitions of the tables of message types."""
    _add(instance, keys.type_partitions, sorted({str(t.partition) for t in report.tables if t.message_type is not None}))


def _add(instance: DagsterInstance, partitions: dg.DynamicPartitionsDefinition, names: Sequence[str]) -> list[str]:
    """Make partitions of these that are none yet, and return those."""
    known = set(instance.get_dynamic_partitions(str(partitions.name))) if names else set()
    new = [name for name in names if name not in known]
    if new:
        instance.add_dynamic_partitions(str(partitions.name), new)
    return new


def asset_of(entry: TableReport, keys: Keys) -> dg.AssetKey:
    """The asset that a table is a part of."""
    return keys.layer(entry.layer) if entry.message_type is None else keys.silver_types


def report_events(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, report: RunResult, keys: Keys = DEFAULT, *, every: bool = False
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What a whole run did, for the assets and partitions that changed and no others (`every`: all, however many games).

    Tables that failed have no event here: their failure is planned, by which Dagster shows them as failed (`plan_failed`).

    An op has to yield these: what it logs instead (`log_event`) is kept back until it ends, and lost if it fails.
    """
    new = add_games(context.instance, report, keys)
    if new:
        context.log.info("new_games=%s", ",".join(new))
    for notice in report.notices:
        context.log.warning(notice)
    changed = [entry for entry in report.tables if entry.error is None]
    chosen = changed if every else with_event(context.instance, changed, keys)
    # An asset's page shows what its newest event has.
    newest = {asset_of(entry, keys): entry for entry in chosen}
    for entry in chosen:
        key = asset_of(entry, keys)
        metadata = table_metadata(entry, report, keys, whole=entry is newest[key])
        yield dg.AssetMaterialization(key, partition=entry.partition, metadata=metadata)
    yield from summaries(changed, chosen, keys)
    plan_failed(context, report, keys)
    if report.replayed:
        # The table holds the same rows as before, and says of these that they are in bronze now.
        yield dg.AssetObservation(keys.quarantine, metadata={"replayed_rows": report.replayed})


def partition_events(
    context: dg.AssetExecutionContext,
    report: RunResult,
    unchanged: Iterable[TableReport],
    key: dg.AssetKey,
    layer: str,
    keys: Keys = DEFAULT,
) -> Iterator[AssetEvent]:
    """Each requested game's own event, with what its table holds; a failed game has none and fails the run at the end.

    So a backfill counts exactly the failed games as failed, and the UI offers exactly them for a retry.

    `unchanged`: tables of games without news.
    """
    add_games(context.instance, report, keys)
    changed = [entry for entry in report.of(layer) if entry.error is None and entry.message_type is None]
    failed = [entry for entry in report.of(layer) if entry.error is not None]
    for entry in report.of(layer):
        if entry.message_type is not None and entry.error is None:
            of_type = table_metadata(entry, report, keys, whole=False)
            yield dg.AssetMaterialization(keys.silver_types, partition=entry.partition, metadata=of_type)
    metadata = _metadata_by_game((*changed, *unchanged), report, keys)
    requested = set(context.partition_keys) - {entry.game for entry in failed}
    absent = sorted(requested - metadata.keys())
    if absent:
        context.log.warning(f"no table, as no rows of it are there: {some(absent)}")
        metadata |= _metadata_of_absent(absent)
    if failed:
        # The one output of a run over several games would mark all of them.
        for game in sorted(requested):
            yield dg.AssetMaterialization(key, partition=game, metadata=metadata.get(game, {}))
        fail_for(failed)
    for game, of_game in metadata.items():
        context.add_asset_metadata(of_game, key, partition_key=game)
    numbers = {"games_changed": len(changed), "games_requested": len(context.partition_keys)}
    yield dg.MaterializeResult(key, metadata=numbers)


def _metadata_of_absent(games: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {game: {"dagster/row_count": 0, "note": "no table: no rows of it are there"} for game in games}


def _metadata_by_game(entries: Iterable[TableReport], report: RunResult, keys: Keys) -> dict[str, dict[str, Any]]:
    return {t.game: table_metadata(t, report, keys) for t in entries if t.game is not None}


def fail_for(failed: list[TableReport]) -> None:
    """Fail the step with the names of the failed tables, if there are any.

    Raises:
        Failure: without a retry, as other runs would wait for it.
    """
    if failed:
        named = "; ".join(f"{t.game or t.table}: {t.error}" for t in failed[:10])
        # By this an alert names the tables, and leaves out the errors' words.
        errors = [{"table": t.table, "game": t.game, "error": t.error} for t in failed]
        whole = {REPORT: dg.MetadataValue.json({"errors": errors, "rows": {}})}
        raise dg.Failure(f"{len(failed)} tables failed: {named}", metadata=whole, allow_retries=False)


def fail_for_sources(report: RunResult) -> None:
    """Fail the step for the sources that were left out, if there are any.

    Raises:
        Failure: without a retry: what the others had is read, and the next run catches up.
    """
    if report.left_out:
        raise dg.Failure(sources_left_out(report), allow_retries=False)


def sources_left_out(report: RunResult) -> str:
    """The sources that were left out, and why."""
    left_out = report.left_out or {}
    named = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    return f"{many(len(left_out), 'source')} left out, the others were read: {named}"


def with_event(instance: DagsterInstance, entries: Sequence[TableReport], keys: Keys, most: int = EVENTS) -> list[TableReport]:
    """The tables that get an event: all of them, or of very many games' those that have waited longest for one.

    `most`: events of games' tables; past these, only tables that never had one, or that may be shown as failed until now.

    Guarantee: bronze, quarantine and unified always have one, and so have the tables that count past `most`.
    """
    of_games = [entry for entry in entries if entry.game is not None]
    if len(of_games) <= most:
        return list(entries)
    chosen = set(map(id, _longest_without(instance, of_games, keys, most)))
    return [entry for entry in entries if entry.game is None or id(entry) in chosen]


def _longest_without(
    instance: DagsterInstance, of_games: Sequence[TableReport], keys: Keys, most: int
) -> Iterator[TableReport]:
    """Tables that have waited longest for an event; past `most` those without any, or that may be shown as failed."""
    newest_events = {}
    failed = {}
    for key in {asset_of(entry, keys) for entry in of_games}:
        newest = instance.event_log_storage.get_latest_storage_id_by_partition
        newest_events[key] = newest(key, DagsterEventType.ASSET_MATERIALIZATION)
        failed[key] = without_result(instance, key)

    def newest_event(entry: TableReport) -> int:
        """Storage id; 0: it never had one."""
        return newest_events[asset_of(entry, keys)].get(str(entry.partition), 0)

    def counts(entry: TableReport) -> bool:
        """Whether it has an event however many there are; tables of message types are too many for that."""
        if entry.message_type is not None:
            return False
        return not newest_event(entry) or entry.game in failed[asset_of(entry, keys)]

    by_age = sorted(of_games, key=newest_event)
    yield from by_age[:most]
    yield from filter(counts, by_age[most:])


def summaries(entries: Sequence[TableReport], chosen: Sequence[TableReport], keys: Keys) -> list[dg.AssetObservation]:
    """One event for each asset with tables that have none: how many, and those with most rows."""
    without: dict[dg.AssetKey, list[TableReport]] = {}
    known = set(map(id, chosen))
    for entry in entries:
        if id(entry) not in known:
            without.setdefault(asset_of(entry, keys), []).append(entry)
    return [_summary(key, tables) for key, tables in without.items()]


def _summary(key: dg.AssetKey, entries: Sequence[TableReport]) -> dg.AssetObservation:
    most = sorted(entries, key=lambda entry: -entry.rows)[:GAMES_SHOWN]
    rows = [{"game": e.partition, "rows_committed": e.rows, "row_count": e.table_rows} for e in most]
    metadata: dict[str, Any] = {
        "games_changed_without_event": len(entries),
        "rows_committed": sum(entry.rows for entry in entries),
        "most_rows": table(("game", "rows_committed", "row_count"), rows),
    }
    said = f"{len(entries):,} more games have changed; `game-events log --kind table` has all of them"
    return dg.AssetObservation(key, description=said, metadata=metadata)


#: Reasons, or rules, with a plot of their own.
PLOTTED = 5


def table_metadata(entry: TableReport, report: RunResult, keys: Keys = DEFAULT, *, whole: bool = True) -> dict[str, Any]:
    """Metadata of one table's materialization: Dagster's standard keys, then this pipeline's own.

    `whole`: with the columns even if the run did not change them, and with the layer's duration. Both are half of an event.
    """
    metadata: dict[str, Any] = {
        "dagster/row_count": entry.table_rows,
        "rows_committed": entry.rows,
        "dagster/uri": dg.MetadataValue.path(entry.location),
        "dagster/table_name": keys.table_name(entry.table),
        "dagster/size_bytes": entry.table_bytes,
        "delta_version": entry.version,
        "bronze_batch": entry.batch,
        "new_columns": ", ".join(entry.new_columns) or None,
    }
    if whole or entry.new or entry.new_columns:
        metadata["dagster/column_schema"] = _column_schema(entry)
    metadata |= _violation_metadata(entry)
    metadata |= _layer_metadata(entry.layer, report)
    if whole and entry.layer in report.seconds:
        seconds = report.seconds[entry.layer]
        metadata["layer_seconds"] = round(seconds, 3)
        metadata["layer_rows_per_second"] = round(report.rows(entry.layer) / seconds, 1) if seconds else None
    return {key: value for key, value in metadata.items() if value is not None}


def _column_schema(entry: TableReport) -> dg.TableSchema:
    comments = {name: as_text(comment) for name, comment in entry.comments.items()}
    return dg.TableSchema([dg.TableColumn(name, type=kind, description=comments.get(name)) for name, kind in entry.columns])


def _violation_metadata(entry: TableReport) -> dict[str, Any]:
    """Rows that violate rules; nothing for a table without rules."""
    duplicates = {"rows_duplicate": entry.duplicates} if entry.duplicates else {}
    if entry.violations is None:
        return duplicates
    metadata: dict[str, Any] = {"violations": dict(entry.violations), **_plotted("violations", entry.violations)}
    if entry.layer == "silver":
        metadata |= {"rows_dropped": entry.dropped, "rows_quarantined": entry.quarantined}
    return metadata | duplicates


def _layer_metadata(layer: str, report: RunResult) -> dict[str, Any]:
    """What a report has of a whole layer."""
    metadata: dict[str, Any] = {}
    if layer == "bronze":
        metadata |= read_metadata(report)
    if layer == "quarantine":
        metadata["reasons"] = dict(report.rejected)
        metadata |= _plotted("rejected", report.rejected)
        metadata["rejected_rows"] = sum(report.rejected.values())
    for f in fields(report):
        asset = f.metadata["asset"]
        value = getattr(report, f.name)
        if asset is not None and asset[0] == layer and value:
            metadata[asset[1]] = asset[2](value)
    return metadata


def _plotted(name: str, counts: Mapping[str, int]) -> Mapping[str, int]:
    """The largest counts as numbers of their own: Dagster plots numbers, and shows mappings as text."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:PLOTTED]
    return {f"{name}_{key}": count for key, count in most}


def read_metadata(report: RunResult) -> Mapping[str, Any]:
    """What was read from Kafka."""
    empty = {"source": "", "read": 0, "lag": 0, "lost": 0, "left_out": ""}
    by_source = [empty | {"source": name} | counts for name, counts in report.by_source.items()]
    return {
        **({"sources": table(tuple(empty), by_source)} if by_source else {}),
        "offsets": partition_table(
            ("from", "to", "lag"), {p: (*ends, report.lag.get(p, 0)) for p, ends in sorted(report.offsets.items())}
        ),
        "lag": sum(report.lag.values()),
        "rejected_rows": sum(report.rejected.values()),
        "schema_ids": sorted(report.schema_ids, key=ordered),
        "batches": report.batches,
        **latency_metadata(report.latency),
    }


def partition_table(names: Sequence[str], numbers: Mapping[Partition, Sequence[int]]) -> dg.TableMetadataValue:
    """Numbers of partitions, a column for each name."""
    columns = ("topic", "partition", *names)
    return table(columns, [dict(zip(columns, (p.place, p.number, *of), strict=True)) for p, of in numbers.items()])


def latency_metadata(latency: Mapping[str, Histogram]) -> Mapping[str, float]:
    """How long records took from Kafka's timestamp to each layer: one number each, so that Dagster plots them."""
    percentiles = {}
    for layer, times in latency.items():
        for share, name in ((0.5, "p50"), (0.95, "p95")):
            seconds = times.percentile(share)
            if seconds is not None:
                percentiles[f"produce_to_{layer}_{name}_s"] = round(seconds, 2)
    return percentiles


def latency_table(latency: Mapping[str, Histogram]) -> str:
    """The histograms as Markdown: rows that became visible within so many seconds."""
    bounds = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 30, 60, 300, float("inf"))
    layers = [layer for layer in REPORTED if layer in latency and latency[layer].total]
    if not layers:
        return "no rows"
    lines = [f"| seconds | {' | '.join(layers)} |", "|---" * (len(layers) + 1) + "|"]
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        lines.append(f"| {name} | " + " | ".join(f"{latency[layer].percentile(share):.1f}" for layer in layers) + " |")
    for below, bound in pairwise((0.0, *bounds)):
        cells = _bars([latency[layer] for layer in layers], below, bound)
        if any(cells):
            lines.append(f"| {below:g} to {bound:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bars(layers: Iterable[Histogram], below: float, bound: float) -> list[str]:
    """For each layer the share of its rows that took longer than `below` seconds and at most `bound`."""
    shares = [sum(n for upper, n in times.buckets() if below < upper <= bound) / times.total for times in layers]
    return [f"{'█' * round(20 * share)} {share:.1%}" if share else "" for share in shares]


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

    def _as_it_is(self, entry: TableReport | None, report: RunResult) -> Iterator[dg.AssetMaterialization]:
        if entry is not None:
            metadata = table_metadata(entry, report, self.keys)
            yield dg.AssetMaterialization(self.keys.layer(entry.layer), partition=entry.game, metadata=metadata)


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


#: Markdown's punctuation; an underscore inside of a word is none.
_PUNCTUATION = re.compile(r"[\\`*\[\]<>|~&]|(?<![^\W_])_|_(?![^\W_])")
#: What only means something where a line begins: headings, lists, rules, code; numbers of a list.
_BEGINNING = re.compile(r"^(\d*)([#+\-=.)])")
#: Any punctuation can be escaped.
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def one_line(text: object) -> str:
    """A text as one line of characters that can be seen."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def as_text(text: object) -> str:
    """One line of Markdown that shows a text as it is.

    It is a paragraph of its own or a part of one: no link, picture, heading, table, emphasis, code or HTML. Addresses that
    begin with http:// or www. are links to themselves all the same, as in any text.
    """
    escaped = _PUNCTUATION.sub(lambda found: "\\" + found[0], one_line(text))
    return _BEGINNING.sub(r"\1\\\2", escaped)


def plain(markdown: str) -> str:
    """The text that `as_text` has made Markdown of."""
    return _ESCAPED.sub(r"\1", markdown)


def some(names: Iterable[object]) -> str:
    """The first names, and how many more there are."""
    every = list(map(str, names))
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> dg.TableMetadataValue:
    """A table of texts and whole numbers."""
    records = [
        dg.TableRecord({name: value if isinstance(value, int) else one_line(value) for name, value in row.items()})
        for row in rows
    ]
    whole = {name for record in records for name, value in record.data.items() if isinstance(value, int)}
    kinds = [dg.TableColumn(name, type="int" if name in whole else "string") for name in columns]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(kinds))
