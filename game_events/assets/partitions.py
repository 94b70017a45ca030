"""What a materialization by hand tells Dagster of each game."""

import dagster as dg

from game_events.assets.events import add_games
from game_events.assets.metadata import table_metadata
from game_events.pipeline.report import RunReport


def partitions_result(context: dg.AssetExecutionContext, report: RunReport, layer: str) -> dg.MaterializeResult[None]:
    """Each game's own metadata; a failed game fails the run after the others' results are kept."""
    add_games(context.instance, report)
    for entry in report.of(layer):
        if entry.error is None and entry.game is not None:
            context.add_asset_metadata(table_metadata(entry, report), partition_key=entry.game)
    errors = [f"{t.game or t.table}: {t.error}" for t in report.of(layer) if t.error is not None]
    if errors:
        raise dg.Failure(f"{len(errors)} tables failed: " + "; ".join(errors[:10]))
    return dg.MaterializeResult(
        metadata={"games_changed": len(report.of(layer)), "games_requested": len(context.partition_keys)}
    )
