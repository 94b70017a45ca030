"""A sensor of the core by its name, as the definitions have it."""

from __future__ import annotations

import time

import dagster as dg

from game_events.orchestration.resources import Graph
from game_events.orchestration.sensors import SENSORS, Clock


def build_sensor(name: str, graph: Graph, clock: Clock = time.time) -> dg.SensorDefinition:
    """One of them."""
    return next(sensor for sensor in SENSORS if sensor.name == name).build(graph, clock)
