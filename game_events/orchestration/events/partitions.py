"""Events of a materialization by hand, one for each game."""

from collections.abc import Iterator

import dagster as dg

from game_events.orchestration.events.materializations import add_games
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.keys import DEFAULT, REPORT, Keys
from game_events.pipeline.reporting.report import RunReport, TableReport

Event = dg.MaterializeResult[None] | dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def partition_events(
    context: dg.AssetExecutionContext, report: RunReport, key: dg.AssetKey, layer: str, keys: Keys = DEFAULT
) -> Iterator[Event]:
    """Each requested game's own event, with metadata if it changed; a failed game has none and fails the run at the end.

    So a backfill counts exactly the failed games as failed, and the UI offers exactly them for a retry.
    """
    add_games(context.instance, report, keys)
    done = {t.game: table_metadata(t, report, keys) for t in report.of(layer) if t.error is None and t.game is not None}
    failed = [t for t in report.of(layer) if t.error is not None]
    if not failed:
        for game, metadata in done.items():
            context.add_asset_metadata(metadata, key, partition_key=game)
        yield dg.MaterializeResult(key, metadata={"games_changed": len(done), "games_requested": len(context.partition_keys)})
        return
    # The one output of a run over several games would mark all of them.
    for game in sorted(set(context.partition_keys) - {t.game for t in failed}):
        yield dg.AssetMaterialization(key, partition=game, metadata=done.get(game, {}))
    fail_for(failed)


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
