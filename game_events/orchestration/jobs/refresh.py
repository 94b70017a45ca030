"""The job `refresh`: the whole pipeline, a step for each layer.

Not a job of the assets themselves: a job with partitioned assets cannot be started in Dagster's UI without a choice of
partitions, and its options could be no one form (decision 25).
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import dagster as dg

from game_events.extending import GoldAggregate
from game_events.orchestration.checks.whole_run import changes, whole_run
from game_events.orchestration.dagster_private import UnresolvedAssetJobDefinition
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.config import RunConfig
from game_events.orchestration.keys import OpEvent
from game_events.orchestration.runs.errors import errors_decide
from game_events.orchestration.runs.tags import CARRIES_ALL, ROW_CHANGING_TAG
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import OWN_GOLD, TriggeredRun

JOB, PLAN = "refresh", "plan"
#: Step -> its op and pool.
STEPS = {
    "bronze": ("refresh_bronze", "bronze"),
    "silver": ("refresh_silver", "silver"),
    "gold": ("refresh_gold", "gold"),
    "unified": ("refresh_unified", "gold"),
    OWN_GOLD: ("refresh_own_aggregates", "gold"),
}
DESCRIPTIONS = {
    "bronze": "Reads the topic up to the offsets seen now.",
    "silver": "Brings every game's silver table up to bronze, in one Spark job.",
    "gold": "Brings every game's gold table up to its silver table, in one Spark job.",
    "unified": "Brings the table over all games up to their gold tables; no Spark.",
    OWN_GOLD: "Brings the tables of user-defined aggregates up to silver.",
}


class SharedRun:
    """What the steps of a run share: its report, its selection, and its entry in the event log, written once at its end."""

    def __init__(self, pipeline: Pipeline, config: RunConfig, attempt: int) -> None:
        """Begin the entry.

        Raises:
            ConfigurationError: the selection names what there is not.
        """
        self.work = TriggeredRun(pipeline, RunReport(), config.selection(pipeline), config.ignore_intervals)
        self.closed = False
        self._entry = ExitStack()
        self._entry.enter_context(recorded(pipeline, self.work.report, JOB, attempt))

    def close(self, error: BaseException | None = None) -> None:
        """Write the entry."""
        self.closed = True
        try:
            self._entry.__exit__(type(error) if error is not None else None, error, None)
        except BaseException as raised:
            if raised is not error:
                raise


def build_refresh(graph: Graph) -> dg.JobDefinition:
    """The job; a game that fails alone fails the run after the others' results are kept."""
    steps = [_step(graph, step) for step in STEPS]
    return graph.job(
        JOB,
        "Triggered mode: all layers, all games, one Spark job for each layer. Sensors, schedules and the command line "
        "start this job; it logs a materialization for each table that changed.",
        _plan(graph),
        *steps,
        _end(graph),
        tags=CARRIES_ALL,
    )


def build_layers(graph: Graph, own: Iterable[GoldAggregate]) -> UnresolvedAssetJobDefinition:
    """The job of the layers' assets: for chosen games by hand; and Dagster shows with each asset what automates it.

    Its runs make no checks of their own; `own`: aggregates that users defined.
    """
    keys = [*graph.keys.by_layer.values(), *(graph.keys.layer(aggregate.layer) for aggregate in own)]
    return dg.define_asset_job(
        graph.keys.named("layers"),
        dg.AssetSelection.assets(*keys).without_checks(),
        description="All layers for chosen games, by hand. For everything that has news, without a choice: `refresh`.",
        executor_def=dg.in_process_executor,
        tags=graph.tags,
    )


def _plan(graph: Graph) -> dg.OpDefinition:
    @graph.op(PLAN, "Checks the options of the run; by default everything is brought up to date.", None)
    def plan(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[OpEvent]:
        if config.full_refresh:
            context.instance.add_run_tags(context.run_id, {ROW_CHANGING_TAG: "true"})
        with errors_decide(context, graph.lakehouse(context).source.read()):
            selection = _shared(context, graph).work.selection
        chosen = {layer: "all" if games is None else ", ".join(sorted(games)) for layer, games in selection.update.items()}
        yield dg.Output(None, metadata={"update": chosen, "replace": sorted(map(str, selection.full))})

    return plan


def _step(graph: Graph, name: str) -> dg.OpDefinition:
    op, pool = STEPS[name]

    @graph.op(op, DESCRIPTIONS[name], pool, after=True)
    def step(context: dg.OpExecutionContext) -> Iterator[OpEvent]:
        with errors_decide(context, graph.lakehouse(context).source.read()):
            run = _shared(context, graph)
            try:
                run.work.steps[name]()
            except BaseException as error:
                run.close(error)
                if isinstance(error, Exception):
                    # What was committed before the error stays, so it is reported; a retry reports only what it adds.
                    yield from changes(context, run.work.report, graph.keys)
                raise
        yield dg.Output(None)

    return step


def _end(graph: Graph) -> dg.OpDefinition:
    @graph.op("report", "Makes the checks of a run, and logs what it changed.", None, after=True)
    def report(context: dg.OpExecutionContext) -> Iterator[OpEvent]:
        with errors_decide(context, graph.lakehouse(context).source.read()):
            run = _shared(context, graph)
            check_after_run(run.work.pipeline, run.work.report)
            run.close()
            # All at once: automation must not find half of a run's events.
            yield from whole_run(context, run.work.report, graph.keys)

    return report


def _shared(context: dg.OpExecutionContext, graph: Graph) -> SharedRun:
    """What the steps share; its options are those of the first step, also where a run is executed again from a later one."""
    lakehouse = graph.lakehouse(context)
    run_config: dict[str, Any] = dict(context.run.run_config)
    options = run_config.get("ops", {}).get(graph.keys.named(PLAN), {}).get("config", {})
    return lakehouse.shared(lambda attempt: SharedRun(lakehouse.pipeline(context.run_id), RunConfig(**options), attempt))
