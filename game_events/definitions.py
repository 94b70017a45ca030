"""Assembles the Dagster project; every part is made elsewhere."""

import dagster as dg

from game_events.config.extensions import extensions_of
from game_events.config.logging import limit_library_loggers
from game_events.config.settings import Settings, load_settings
from game_events.orchestration.assets.http_export import build_rest
from game_events.orchestration.assets.labels import labelled
from game_events.orchestration.assets.layers import build_tables
from game_events.orchestration.checks.rules import build_rule_checks, declared_rules
from game_events.orchestration.checks.tables import build_check_schedule, build_checks
from game_events.orchestration.jobs.archive import archive
from game_events.orchestration.jobs.continuous import continuous
from game_events.orchestration.jobs.maintain import hourly_maintenance, maintain
from game_events.orchestration.jobs.refresh import redecode, refresh, replay
from game_events.orchestration.jobs.validate import build_validate
from game_events.orchestration.keys import Keys
from game_events.orchestration.resources import LakehouseResource, SparkResource
from game_events.orchestration.sensors import SENSORS
from game_events.orchestration.sensors.continuous_mode import continuous_mode


def build_defs(settings: Settings | None = None) -> dg.Definitions:
    """The definitions for some settings (default: those of the environment)."""
    limit_library_loggers()
    settings = settings or load_settings()
    keys = Keys.of(settings)
    checks = build_checks(keys)
    rest = build_rest(settings, keys)
    return dg.Definitions(
        assets=labelled(settings, [*build_tables(settings, extensions_of(settings).aggregates, keys), *rest.assets]),
        asset_checks=[*checks, *build_rule_checks(declared_rules(settings), keys)],
        jobs=[refresh, replay, redecode, maintain, archive, continuous, build_validate(build_defs), *rest.jobs],
        schedules=[build_check_schedule(checks), hourly_maintenance],
        sensors=[*SENSORS, continuous_mode, *rest.sensors],
        resources={"lakehouse": LakehouseResource(spark=SparkResource())},
        # The default executor would start a JVM for each step and each check.
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    return build_defs()
