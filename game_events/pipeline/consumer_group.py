"""Where bronze stands, told to a consumer group of Kafka: for tools that watch lag. Nothing is ever read from there."""

from __future__ import annotations

from game_events.errors import GameEventsError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.report import RunReport
from game_events.sources.kafka import KafkaSource
from game_events.sources.source import Positions


def tell_group(pipeline: Pipeline, positions: Positions, report: RunReport) -> None:
    """Commit bronze's next offsets for the group of the setting `consumer_group`, if there is one.

    After bronze's own commit: the group is behind it by a moment, never ahead. If the broker refuses, that is a notice, and the
    run goes on.
    """
    group, source = pipeline.settings.consumer_group, pipeline.source
    if group is None or not positions or not isinstance(source, KafkaSource):
        return
    try:
        source.tell(group, positions)
    except GameEventsError as error:
        report.notices.append(f"consumer group {group} was not told where bronze stands: {error}")
