"""The jobs: `refresh` and its dry run `validate`, `maintain`, `replay` and `redecode`; and which places a job may use.

`refresh` is not a job of the assets themselves: a job with partitioned assets cannot be started in Dagster's UI without a
choice of partitions, and its options could be no one form (decision 25).

Whoever may use Dagster's UI may start a job with any configuration, and has no other access to this machine or its object
store. So a job takes only folders and prefixes that the settings name. A command takes any: its user could do the same without
it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from posixpath import normpath
from typing import Any

import dagster as dg
from pydantic import Field

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.extending import GoldAggregate
from game_events.lakehouse.storage import is_remote
from game_events.lakehouse.tables import REFRESHED, Layer, is_gold
from game_events.orchestration.checks import changes, last_known, whole_run
from game_events.orchestration.events import PlannedLayers, fail_for, fail_for_sources, table
from game_events.orchestration.keys import REPORT, OpEvent, UnresolvedAssetJobDefinition
from game_events.orchestration.resources import Graph, SharedRun
from game_events.orchestration.runs import CARRIES_ALL, ROW_CHANGING_TAG, errors_decide
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain as maintain_tables
from game_events.pipeline.replay_selection import replay_selection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.reprocessing import redecode as redecode_bronze
from game_events.pipeline.runs.preflight import PreflightResult, run_plan_checks, validation
from game_events.pipeline.runs.refresh import (
    EVERYTHING,
    OWN_GOLD,
    TriggeredRun,
    refresh_downstream,
    replay_and_refresh,
    selection_of,
)

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
            if name == Layer.BRONZE:
                fail_for_sources(report)

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
    try:
        with errors_decide(context, graph.lakehouse(context).source.read()):
            run = _shared_run(context, graph)
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


def _shared_run(context: dg.OpExecutionContext, graph: Graph) -> SharedRun:
    """What the steps share, begun by the first of them."""
    named = graph.keys.named
    chosen = context.run.step_keys_to_execute or context.run.resolved_op_selection
    if chosen and named(REPORTING) not in chosen:
        raise ConfigurationError(f"the step `{named(REPORTING)}` logs what the others did: choose it, too")
    # The options of the first step, also where a run is executed again from a later one.
    run_config: dict[str, Any] = dict(context.run.run_config)
    options = RunConfig(**run_config.get("ops", {}).get(named(PLAN), {}).get("config", {}))

    def begin(pipeline: Pipeline, report: RunReport) -> TriggeredRun:
        # Checked against what there is, before anything is touched.
        selection = selection_of(pipeline, options.select, options.games, options.full_refresh)
        run = TriggeredRun(pipeline, report, selection, options.ignore_intervals)
        _planned(graph, run).log(context)
        return run

    return graph.lakehouse(context).shared(context.run_id, JOB, begin)


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
        graph_of_assets = definitions.resolve_asset_graph()
        return f"{len(graph_of_assets.get_all_asset_keys())} assets, {len(graph_of_assets.asset_check_keys)} checks"

    return validation(pipeline, {"graph": graph} | run_plan_checks(pipeline, lambda: selection_of(pipeline, **asked)))


def build_validate(graph: Graph, load: Callable[[], dg.Definitions]) -> dg.JobDefinition:
    """The job `validate`; its run calls `load` for the definitions, as the job is one of their parts."""

    @graph.op("check_everything", "Settings, connections, tables, graph, and what a run would do. Changes nothing.", None)
    def check_everything(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[dg.Output[None]]:
        pipeline = graph.lakehouse(context).pipeline(context.run_id)
        results = dry_run(pipeline, load, select=config.select, games=config.games, full_refresh=config.full_refresh)
        whole = {"checks": dg.MetadataValue.json([c.to_dict() for c in results])}
        failed = [c for c in results if not c.ok]
        if failed:
            said = "; ".join(f"{c.check}: {c.detail}" for c in failed)
            # Nothing is different a second later.
            raise dg.Failure(f"{len(failed)} checks failed: {said}", metadata=whole, allow_retries=False)
        yield dg.Output(None, metadata=whole | {c.check.replace(" ", "_"): c.detail for c in results})

    description = "Dry run: checks all that a run needs and reports what it would do. The same as `game-events run --dry-run`."
    return graph.job("validate", description, check_everything)


class MaintenanceConfig(dg.Config):
    """Which tables, and whether to count only."""

    tables: list[str] = Field(default=[], description="Tables, or layers; empty: all of them.")
    dry_run: bool = Field(default=False, description="Only count what would be joined and deleted.")
    layout: bool = Field(default=False, description="Until every file is as LAYOUT and STATISTICS_COLUMNS say.")


def build_maintain(graph: Graph) -> dg.JobDefinition:
    """The job: all tables, or some; a table that fails alone fails the run after the others are done."""

    @graph.op(
        "look_after_tables",
        "Joins small files of append-only tables, deletes files that were replaced long enough ago or left by crashes, "
        "shortens the tables' logs; removes rows that are older than RETENTION_DAYS. No other row and no progress changes; "
        "starts no Spark.",
        # Work that rewrites rows would lose its last commit to a compaction; the continuous run has a pool of its own, and
        # takes a compaction beside it calmly.
        "bronze",
    )
    def look_after_tables(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[dg.Output[None]]:
        recorded = graph.lakehouse(context).recorded(context, "maintain", observed=not config.dry_run)
        with recorded as (pipeline, report):
            maintain_tables(pipeline, report, config.tables, dry_run=config.dry_run, layout=config.layout)
        tables = report.maintenance.values()
        failed = [entry for entry in tables if entry.error]
        metadata: dict[str, Any] = {
            REPORT: dg.MetadataValue.json(report.to_dict()),
            "tables": _table(tables),
            "files_joined": sum(entry.joined for entry in tables),
            "files_deleted": sum(entry.replaced + entry.orphans for entry in tables),
        }
        if pipeline.settings.row_retention is not None:
            metadata["rows_gone_by_age"] = sum(entry.expired for entry in tables)
        if failed:
            words = "; ".join(f"{entry.table}: {entry.error}" for entry in failed[:10])
            raise dg.Failure(f"{len(failed)} tables failed: {words}", metadata=metadata, allow_retries=False)
        yield dg.Output(None, metadata=metadata)

    return graph.job(
        "maintain",
        "Maintenance of the tables, safe beside any run and reader. The same as `game-events maintain`.",
        look_after_tables,
    )


def _table(tables: Iterable[TableMaintenance]) -> dg.TableMetadataValue:
    """The tables that were changed."""
    numbers = ("joined", "into", "renewed", "laid_out", "replaced", "orphans", "waiting", "expired")
    rows = [
        {"table": entry.table, **{name: getattr(entry, name) for name in numbers}, "note": entry.error or entry.skipped or ""}
        for entry in tables
        if entry.anything
    ]
    return table(("table", *numbers, "note"), rows)


class ReplayConfig(dg.Config):
    """Which rows of `quarantine_events` to try again; empty lists: all of them."""

    reasons: list[str] = Field(default=[], description="Only rows with these reasons, such as BAD_SCHEMA; empty: all.")
    schema_ids: list[str] = Field(default=[], description="Only rows of these schema ids or GUIDs; empty: all.")


class RedecodeConfig(dg.Config):
    """What else follows when bronze's columns were rebuilt."""

    refresh_silver_and_gold: bool = Field(default=False, description="Rebuild silver and gold from the new columns, too.")


def build_replay(graph: Graph) -> dg.JobDefinition:
    """The job `replay`: after a schema was registered, decoding learned something new, or a rule changed."""

    @graph.op(
        "replay_quarantined_rows",
        "Tries rows of quarantine_events again; those that decode now, or that the rules let in, reach silver and gold once.",
        "bronze",
    )
    def replay_quarantined_rows(context: dg.OpExecutionContext, config: ReplayConfig) -> Iterator[OpEvent]:
        def work(pipeline: Pipeline, report: RunReport) -> Mapping[str, object]:
            done = replay_and_refresh(pipeline, report, replay_selection(config.reasons, config.schema_ids))
            return {"replayed_rows": done.rows, "left_by_reason": dict(done.left)}

        yield from _run(context, graph, "replay", REFRESHED, work)

    return graph.job(
        "replay",
        "Rows of quarantine_events that can be decoded after all, or satisfy the rules now, reach silver and gold. The "
        "same as `game-events quarantine replay`.",
        replay_quarantined_rows,
        tags=CARRIES_ALL,
    )


def build_redecode(graph: Graph) -> dg.JobDefinition:
    """The job `redecode`: after decoding learned something new."""

    @graph.op(
        "redecode_bronze",
        "Rebuilds bronze's decoded columns from its raw values, without Kafka, in one atomic commit.",
        "bronze",
    )
    def redecode_bronze_events(context: dg.OpExecutionContext, config: RedecodeConfig) -> Iterator[OpEvent]:
        def work(pipeline: Pipeline, report: RunReport) -> Mapping[str, object]:
            done = redecode_bronze(pipeline, report)
            if config.refresh_silver_and_gold:
                refresh_downstream(pipeline, report, full=True)
            return {
                "redecoded_rows": done.rows,
                "kept_by_reason": dict(done.kept),
                "new_columns": done.new_columns,
                "undecoded_by_type": dict(done.other_types),
            }

        layers = REFRESHED if config.refresh_silver_and_gold else (Layer.BRONZE,)
        yield from _run(context, graph, "redecode", layers, work)

    return graph.job(
        "redecode",
        "Bronze's decoded columns are rebuilt from its raw values. The same as `game-events redecode`.",
        redecode_bronze_events,
    )


def _run(
    context: dg.OpExecutionContext,
    graph: Graph,
    name: str,
    layers: Collection[str],
    work: Callable[[Pipeline, RunReport], Mapping[str, object]],
) -> Iterator[OpEvent]:
    """Do the work, make the checks, and report both as events; then fail, if the work stopped or a table failed.

    `layers`: those that it may write.
    """
    with graph.lakehouse(context).recorded(context, name) as (pipeline, report):
        planned = PlannedLayers.all_games(pipeline, graph.keys, layers)
        planned.log(context)
        try:
            more = work(pipeline, report)
            check_after_run(pipeline, report)
        except Exception:
            # What was committed before the error stays, so it is reported; a retry reports only what it adds.
            yield from changes(context, report, graph.keys)
            yield from last_known(context, pipeline)
            raise
    yield from whole_run(context, report, planned, more)


_of_commands: set[str] = set()


def allow_here(place: str) -> None:
    """Let runs in this process use a place: its command line names it."""
    _of_commands.add(place)


def check_place(settings: Settings, place: str) -> None:
    """Check that a run may use a place.

    Raises:
        ConfigurationError: it is neither below one of `job_places` nor this command's own.
    """
    if place in _of_commands or any(_is_below(place, allowed) for allowed in settings.job_places):
        return
    raise ConfigurationError(
        f"{place} is in no folder of GAME_EVENTS_JOB_PLACES, which names those that jobs started from the UI may use: add it "
        "there, or use the command line (`game-events archive --to`, `game-events export run --files`)"
    )


def _is_below(place: str, allowed: str) -> bool:
    if is_remote(place) != is_remote(allowed):
        return False
    if is_remote(place):
        return f"{_address(place)}/".startswith(f"{_address(allowed)}/")
    return _folder(place).is_relative_to(_folder(allowed))


def _address(place: str) -> str:
    """With one scheme for S3, and no way up."""
    scheme, _, rest = place.replace("s3a://", "s3://", 1).partition("://")
    return f"{scheme}://{normpath(rest)}"


def _folder(place: str) -> Path:
    """Where links lead, as the job will follow them."""
    return Path(place.removeprefix("file://")).expanduser().resolve()
