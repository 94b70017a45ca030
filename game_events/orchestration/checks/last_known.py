"""The last known results of checks that a run does not make, each with its own date.

Dagster shows a check as "not evaluated" from the next materialization of its asset on, also if it had failed and blocks. An
asset here is the tables of all games, and a refresh of one game materializes it: so each run that does logs again what is known
of the checks that it does not make itself. Checks are not partitioned by game: Dagster 1.13 shows of a check its newest result
alone, of whatever partition, and an event for each game and check would be as many as there are games.
"""

from collections.abc import Collection, Iterator

import dagster as dg
from dagster import DagsterInstance

from game_events.orchestration.checks.rules import rule_checks
from game_events.orchestration.checks.tables import again
from game_events.orchestration.keys import Keys
from game_events.pipeline.checks.registry import CHECKS
from game_events.pipeline.context import Pipeline


def last_known(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, pipeline: Pipeline
) -> Iterator[dg.AssetCheckEvaluation]:
    """The last results of checks of the layers that this run has materialized and not checked; to be called at its end."""
    keys, run_id = Keys.of(pipeline.settings), context.run.run_id
    checks = [*(dg.AssetCheckKey(keys.by_layer[check.layer], check.name) for check in CHECKS), *rule_checks(pipeline)]
    written = _materialized_by(context.instance, run_id, {key.asset_key for key in checks})
    yield from again(context.instance, run_id, (key for key in checks if key.asset_key in written))


def _materialized_by(instance: DagsterInstance, run_id: str, assets: Collection[dg.AssetKey]) -> set[dg.AssetKey]:
    found = set()
    for record in instance.get_asset_records(list(assets)):
        newest = record.asset_entry.last_materialization_record
        if newest is not None and newest.run_id == run_id:
            found.add(record.asset_entry.asset_key)
    return found
