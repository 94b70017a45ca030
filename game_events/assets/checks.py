"""Asset checks on the whole: run by themselves from the UI; the job `refresh` reports them too."""

import dagster as dg

from game_events.assets.events import CONSERVED
from game_events.assets.keys import SILVER_KEY
from game_events.assets.resources import LakehouseResource
from game_events.pipeline.reconcile import reconcile


@dg.asset_check(
    asset=SILVER_KEY,
    name=CONSERVED,
    description="bronze = silver + unrouted + pending, in all and for each game: nothing lost, nothing doubled.",
)
def rows_conserved(context: dg.AssetCheckExecutionContext, lakehouse: LakehouseResource) -> dg.AssetCheckResult:
    """Count every layer anew."""
    found = reconcile(lakehouse.pipeline(context.run.run_id))
    return dg.AssetCheckResult(
        passed=found.passed,
        metadata=dict(found.metadata()),
        severity=dg.AssetCheckSeverity.ERROR,
        description=found.summary(),
    )
