"""The job `refresh`: the whole pipeline, a step for each layer; and its dry run, the job `validate`.

Not a job of the assets themselves: a job with partitioned assets cannot be started in Dagster's UI without a choice of
partitions, and its options could be no one form (decision 25).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from game_events.errors import ConfigurationError
from game_events.extending import GoldAggregate
from game_events.lakehouse.layers import Layer, is_gold
from game_events.orchestration.checks.last_known import last_known
from game_events.orchestration.checks.whole_run import changes, whole_run
from game_events.orchestration.dagster_private import UnresolvedAssetJobDefinition
from game_events.orchestration.events.materializations import fail_for
from game_events.orchestration.events.planned import PlannedLayers
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OpEvent
from game_events.orchestration.resources import SharedRun
from game_events.orchestration.runs.errors import errors_decide
from game_events.orchestration.runs.tags import CARRIES_ALL, ROW_CHANGING_TAG
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.preflight import PreflightResult, run_plan_checks
from game_events.pipeline.runs.refresh import OWN_GOLD, TriggeredRun
from game_events.pipeline.runs.selection import EVERYTHING, selection_of
from game_events.pipeline.runs.state_checks import validation

JOB, PLAN, REPORTING = "refresh", "plan", "report"
#: All steps wait for the same pool, as the jobs do that repair and maintain the tables: a run waits in the queue, where it can
#: be canceled, and seldom between two steps.
POOL = "bronze"
#: Step -> its op, and what it does.
STEPS = {
    "bronze": ("refresh_bronze", "Reads the topic up to the offsets seen now."),
    "silver": ("refresh_silver", "Brings every game's silver table up to bronze, in one Spark job."),
    "gold": ("refresh_gold", "Brings every game's gold table up to its silver table, in one Spark job."),
    "unified": ("refresh_unified", "Brings the table over all games up to their gold tables; no Spark."),
    OWN_GOLD: ("refresh_own_aggregates", "Brings the tables of user-defined aggregates up to silver."),
}
#: A step begins as soon as the step before has said that it has done its part: then that one may fail for single games, in
#: red, and the layers after it are still brought up to date for the others.
GOES_ON = dg.in_process_executor.configured({"step_dependency_config": {"require_upstream_step_success": False}}, "in_process")


class RunConfig(dg.Config):
    """Options of the job `refresh`; by default everything is brought up to date and nothing is replaced."""

    select: list[str] = Field(
        default=[], description="Layers, asset keys or tables to bring up to date; empty: all. See docs/refresh.md."
    )
    games: list[str] = Field(default=[], description="Only these games, in silver and gold; empty: every game.")
    full_refresh: list[str] = Field(
        default=[],
        description="Layers, asset keys or tables to replace by everything the layer before has of them; `all`: every layer.",
    )
    ignore_intervals: bool = Field(
        default=False, description="Refresh gold aggregates before their own interval has passed, too."
    )

    def begin(self, pipeline: Pipeline, report: RunReport) -> TriggeredRun:
        """The work of a run with these options, checked against what there is; raises before anything is touched."""
        selection = selection_of(pipeline, self.select, self.games, self.full_refresh)
        return TriggeredRun(pipeline, report, selection, self.ignore_intervals)


def build_refresh(graph: Graph) -> dg.JobDefinition:
    """The job; a game that fails alone fails the run after the others' results are kept."""
    steps = [_step(graph, step) for step in STEPS]
    return graph.job(
        JOB,
        "Triggered mode: all layers, all games, one Spark job for each layer. Sensors, schedules and the command line "
        "start this job; it logs a materialization for each table that changed. The step of a layer fails if one of its "
        "tables failed; the next layers are brought up to date for the others all the same.",
        _plan(graph),
        *steps,
        _end(graph),
        tags=CARRIES_ALL,
        executor=GOES_ON,
    )


def build_layers(graph: Graph, own: Iterable[GoldAggregate]) -> UnresolvedAssetJobDefinition:
    """The job of the layers' assets, for chosen games by hand.

    Its runs make no checks of their own; `own`: aggregates that users defined. Those of some games only have other partitions,
    and a job has one kind of them.
    """
    keys = [*graph.keys.by_layer.values(), *(graph.keys.layer(one.layer) for one in own if not one.games)]
    return dg.define_asset_job(
        graph.keys.named("layers"),
        dg.AssetSelection.assets(*keys).without_checks(),
        description="All layers for chosen games, by hand. For everything that has news, without a choice: `refresh`.",
        executor_def=dg.in_process_executor,
        tags=graph.tags,
    )


def _plan(graph: Graph) -> dg.OpDefinition:
    @graph.op(PLAN, "Checks the options of the run; by default everything is brought up to date.", POOL)
    def plan(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[OpEvent]:
        if config.full_refresh:
            context.instance.add_run_tags(context.run_id, {ROW_CHANGING_TAG: "true"})
        yield from _execute(context, graph, lambda _: None)
        selection = graph.lakehouse(context).last.work.selection
        chosen = {layer: "all" if games is None else ", ".join(sorted(games)) for layer, games in selection.update.items()}
        yield dg.Output(None, metadata={"update": chosen, "replace": sorted(map(str, selection.full))})

    return plan


def _step(graph: Graph, name: str) -> dg.OpDefinition:
    @graph.op(*STEPS[name], POOL, after=True)
    def step(context: dg.OpExecutionContext) -> Iterator[OpEvent]:
        yield from _execute(context, graph, lambda run: run.execute(name))
        # First, as the next steps wait for it.
        yield dg.Output(None)
        if context.job_def.executor_def is GOES_ON:
            report = graph.lakehouse(context).last.work.report
            fail_for([table for table in report.errors if step_of(table.layer) == name])

    return step


def step_of(layer: str) -> str:
    """The step that writes a layer's tables."""
    if is_gold(layer) and layer != Layer.GOLD:
        return OWN_GOLD
    return Layer.BRONZE if layer == Layer.QUARANTINE else layer


def _end(graph: Graph) -> dg.OpDefinition:
    @graph.op(REPORTING, "Makes the checks of a run, and logs what it changed.", None, after=True)
    def report(context: dg.OpExecutionContext) -> Iterator[OpEvent]:
        def finish(run: SharedRun) -> None:
            # Where a run is executed again from its last step on: what failed alone is not done yet.
            for name in STEPS:
                run.execute(name)
            check_after_run(run.work.pipeline, run.work.report)
            run.close()

        yield from _execute(context, graph, finish)
        last = graph.lakehouse(context).last
        yield from whole_run(context, last.work.report, _planned(graph, last.work))

    return report


def _execute(context: dg.OpExecutionContext, graph: Graph, work: Callable[[SharedRun], None]) -> Iterator[OpEvent]:
    """One step. An error that is retried leaves the run open; any other ends it with the events of what was committed.

    Raises:
        RetryRequested, Failure, DagsterExecutionInterruptedError: as `errors_decide`. Failure, too, if single steps were chosen
            without the last one, which logs what they did; or if the selection names what there is not.
    """
    cause: BaseException | None = None
    run: SharedRun | None = None
    named, chosen = graph.keys.named, context.run.step_keys_to_execute or context.run.resolved_op_selection
    try:
        with errors_decide(context, graph.lakehouse(context).source.read()):
            if chosen and named(REPORTING) not in chosen:
                raise ConfigurationError(f"the step `{named(REPORTING)}` logs what the others did: choose it, too")
            # The options of the first step, also where a run is executed again from a later one.
            run_config: dict[str, Any] = dict(context.run.run_config)
            options = RunConfig(**run_config.get("ops", {}).get(named(PLAN), {}).get("config", {}))

            def begin(pipeline: Pipeline, report: RunReport) -> TriggeredRun:
                found = options.begin(pipeline, report)
                _planned(graph, found).log(context)
                return found

            run = graph.lakehouse(context).shared(context.run_id, JOB, begin)
            try:
                work(run)
            except BaseException as error:
                cause = error
                raise
    except dg.RetryRequested:
        raise
    except BaseException as error:
        if run is not None and not run.closed:
            run.close(cause or error)
        if run is not None and isinstance(error, Exception):
            yield from changes(context, run.work.report, graph.keys)
            yield from _planned(graph, run.work).unchanged(run.work.report, run.done)
            yield from last_known(context, run.work.pipeline)
        raise


def _planned(graph: Graph, work: TriggeredRun) -> PlannedLayers:
    """The layers of a run's selection."""
    if work.selection == EVERYTHING:
        return PlannedLayers.all_games(work.pipeline, graph.keys)
    chosen = {**work.selection.full, **work.selection.update}
    return PlannedLayers(work.pipeline, graph.keys, {layer: games is None for layer, games in chosen.items()})


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
