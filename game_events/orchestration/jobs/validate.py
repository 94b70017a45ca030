"""The dry run: all checks, those of the graph among them; and the job `validate` that makes them in the UI."""

from collections.abc import Callable, Collection, Iterator

import dagster as dg

from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.refresh import RunConfig
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import PreflightResult, run_plan_checks
from game_events.pipeline.runs.selection import selection_of
from game_events.pipeline.runs.state_checks import validation


def dry_run(pipeline: Pipeline, load: Callable[[], dg.Definitions], **asked: Collection[str]) -> list[PreflightResult]:
    """Everything a run needs, and what it would do if `asked` (as `selection_of`); `load` gives Dagster's definitions."""

    def graph() -> str:
        definitions = load()
        dg.Definitions.validate_loadable(definitions)
        found = definitions.resolve_asset_graph()
        return f"{len(found.get_all_asset_keys())} assets, {len(found.asset_check_keys)} checks"

    return validation(pipeline, {"graph": graph} | run_plan_checks(pipeline, lambda: selection_of(pipeline, **asked)))


def build_validate(graph: Graph, load: Callable[[], dg.Definitions]) -> dg.JobDefinition:
    """The job `validate`; its run calls `load` for the definitions, as the job is one of their parts."""

    @graph.op("check_everything", "Settings, connections, tables, graph, and what a run would do. Changes nothing.", None)
    def check_everything(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[dg.Output[None]]:
        pipeline = graph.lakehouse(context).pipeline(context.run_id)
        found = dry_run(pipeline, load, select=config.select, games=config.games, full_refresh=config.full_refresh)
        whole = {"checks": dg.MetadataValue.json([c.to_dict() for c in found])}
        failed = [c for c in found if not c.ok]
        if failed:
            said = "; ".join(f"{c.check}: {c.detail}" for c in failed)
            # Nothing is different a second later.
            raise dg.Failure(f"{len(failed)} checks failed: {said}", metadata=whole, allow_retries=False)
        yield dg.Output(None, metadata=whole | {c.check.replace(" ", "_"): c.detail for c in found})

    description = "Dry run: checks all that a run needs and reports what it would do. The same as `game-events run --dry-run`."
    return graph.job("validate", description, check_everything)
