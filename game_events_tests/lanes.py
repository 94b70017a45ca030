"""Positions of one topic, written as partition -> offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from game_events.sources.core.source import Lane, Positions, Seen

T = TypeVar("T")


def lanes(topic: str, topic_id: str, offsets: Mapping[int, int]) -> Positions:
    """Lane -> offset."""
    return {Lane(topic, topic_id, partition): offset for partition, offset in offsets.items()}


def seen(topic: str, topic_id: str, earliest: Mapping[int, int], latest: Mapping[int, int]) -> Seen:
    """A source of one topic."""
    return Seen(lanes(topic, topic_id, earliest), lanes(topic, topic_id, latest))


def by_partition(positions: Mapping[Lane, T]) -> dict[int, T]:
    """Back again."""
    return {lane.partition: at for lane, at in positions.items()}
