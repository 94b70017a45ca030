"""Plug-in: alerts to a webhook, of failed runs and checks, lost records, and lag."""

from game_events.plugin import Plugin

PLUGIN = Plugin(
    "alerts",
    settings="game_events.plugins.alerts.settings:AlertSettings",
    definitions="game_events.plugins.alerts.sensors:build_alerts",
    command_run_ended="game_events.plugins.alerts.sensors:send_own_alerts",
)
