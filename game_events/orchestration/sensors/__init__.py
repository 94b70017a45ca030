"""Sensors: cheap, bounded in time, with a cursor; what cannot be reached is a skip with a reason."""

import dagster as dg

from game_events.orchestration.graph import Graph
from game_events.orchestration.sensors.alerts import build_alerts
from game_events.orchestration.sensors.automation import build_automation
from game_events.orchestration.sensors.continuous_mode import build_continuous_mode
from game_events.orchestration.sensors.data_alarms import build_data_alarms
from game_events.orchestration.sensors.dead_runs import build_dead_runs
from game_events.orchestration.sensors.kafka_lag import build_kafka_lag
from game_events.orchestration.sensors.new_games import build_new_games
from game_events.orchestration.sensors.schema_versions import build_schema_versions
from game_events.orchestration.sensors.status import build_status_sensor
from game_events.orchestration.sensors.ticks import Jobs


def build_sensors(graph: Graph, jobs: Jobs) -> list[dg.SensorDefinition]:
    """All sensors of a pipeline; `jobs`: those that refresh all layers, which Dagster shows as automated by them."""
    return [
        build_kafka_lag(graph, jobs),
        build_schema_versions(graph, jobs),
        build_new_games(graph),
        build_automation(graph),
        build_dead_runs(graph),
        build_alerts(graph),
        build_data_alarms(graph),
        build_continuous_mode(graph),
        build_status_sensor(graph),
    ]
