"""Assembles the Dagster project; every part is made elsewhere."""

import dagster as dg

from game_events.assets.archiving import archive
from game_events.assets.checks import build_check_schedule, build_checks
from game_events.assets.continuous import continuous
from game_events.assets.continuous_mode import continuous_mode
from game_events.assets.jobs import redecode, refresh, replay
from game_events.assets.keys import Keys
from game_events.assets.labels import labelled
from game_events.assets.maintenance import hourly_maintenance, maintain
from game_events.assets.resources import LakehouseResource, SparkResource
from game_events.assets.rest_export import build_rest
from game_events.assets.rule_checks import build_rule_checks, declared_rules
from game_events.assets.sensors import SENSORS
from game_events.assets.tables import build_tables
from game_events.assets.validate import build_validate
from game_events.extensions import extensions_of
from game_events.settings import Settings, load_settings


def build_defs(settings: Settings | None = None) -> dg.Definitions:
    """The definitions for some settings (default: those of the environment)."""
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
