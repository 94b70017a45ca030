"""Assembles the Dagster project; every part is made elsewhere."""

import dagster as dg

from game_events.config.extensions import extensions_of
from game_events.config.logging import limit_library_loggers
from game_events.config.settings import Settings
from game_events.orchestration.assets import build_automation, build_tables
from game_events.orchestration.checks import build_check_job, build_checks, build_rule_checks, build_status
from game_events.orchestration.continuous import build_continuous
from game_events.orchestration.jobs import (
    build_layers,
    build_maintain,
    build_redecode,
    build_refresh,
    build_replay,
    build_validate,
)
from game_events.orchestration.resources import Graph, TableLoader
from game_events.orchestration.sensors import SENSORS
from game_events.plugin import parts


def build_defs(settings: Settings | None = None) -> dg.Definitions:
    """The definitions of a pipeline: graph, runs and sensors over one lakehouse.

    `settings`: None: those of the environment, which each run and each tick of a sensor reads again. Definitions of several
    settings with different prefixes (`names`) can be merged into one code location.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    limit_library_loggers()
    graph = Graph.of(settings)
    checks = build_checks(graph)
    maintain = build_maintain(graph)
    aggregates = extensions_of(graph.settings).aggregates
    every_check = [*checks, *build_rule_checks(graph)]
    status, all_is_well = build_status(graph, every_check)
    own = dg.Definitions(
        assets=[*build_tables(graph, aggregates), status],
        asset_checks=[*every_check, all_is_well],
        jobs=[
            build_refresh(graph),
            build_layers(graph, aggregates),
            build_replay(graph),
            build_redecode(graph),
            maintain,
            build_continuous(graph),
            build_validate(graph, lambda: build_defs(settings)),
        ],
        schedules=[
            graph.schedule(
                "daily_checks",
                build_check_job(graph, checks),
                "17 3 * * *",
                "Makes every check on the whole once a day; what only shows from afar (volume, doubled rows) shows here.",
            ),
            graph.schedule(
                "hourly_maintenance",
                maintain,
                "41 * * * *",
                "Maintains the tables each hour, so that runs in triggered mode leave no small files behind; continuous mode "
                "does it by itself meanwhile.",
            ),
        ],
        sensors=[*(sensor.build(graph) for sensor in SENSORS), build_automation(graph)],
        resources={**graph.resources, graph.keys.named("tables"): TableLoader(spark=graph.spark, source=graph.source)},
        # The default executor would start a JVM for each step and each check.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(own, *(build(graph) for build in parts("definitions")))


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    return build_defs()
