"""Sensors: cheap, bounded in time, with a cursor; what cannot be reached is a skip with a reason."""

from game_events.orchestration.sensors import alerts, data_alarms, dead_runs, kafka_lag, new_games, schema_versions
from game_events.orchestration.sensors.automation import automation

SENSORS = [
    kafka_lag.kafka_lag,
    schema_versions.schema_versions,
    new_games.new_games,
    automation,
    dead_runs.dead_runs,
    alerts.alerts,
    data_alarms.data_alarms,
]
