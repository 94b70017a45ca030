"""A run's report as Dagster events: one materialization for each table that changed, one check result for each check."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.keys import DEFAULT, Keys
from game_events.pipeline.reporting.report import RunReport


def add_games(instance: dg.DagsterInstance, report: RunReport, keys: Keys = DEFAULT) -> list[str]:
    """Make partitions of the report's games that are none yet; returns the new ones."""
    games = sorted({t.game for t in report.tables if t.game and t.error is None})
    known = set(instance.get_dynamic_partitions(str(keys.partitions.name))) if games else set()
    new = [g for g in games if g not in known]
    if new:
        instance.add_dynamic_partitions(str(keys.partitions.name), new)
    return new


def report_events(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, report: RunReport, keys: Keys = DEFAULT
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What a whole run did, for the assets and partitions that changed and no others.

    An op has to yield these: what it logs instead (`log_event`) is kept back until it ends, and lost if it fails.
    """
    new = add_games(context.instance, report, keys)
    if new:
        context.log.info("new_games=%s", ",".join(new))
    for notice in report.notices:
        context.log.warning(notice)
    for entry in report.tables:
        if entry.error is None:
            yield dg.AssetMaterialization(
                keys.layer(entry.layer), partition=entry.game, metadata=table_metadata(entry, report, keys)
            )
    if report.replayed:
        # The table holds the same rows as before, and says of these that they are in bronze now.
        yield dg.AssetObservation(keys.quarantine, metadata={"replayed_rows": report.replayed})
