"""Offsets of one topic, written as partition -> offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from game_events.sources.core.source import Offsets, SourceSnapshot, Split

T = TypeVar("T")


def lanes(topic: str, topic_id: str, offsets: Mapping[int, int]) -> Offsets:
    """Split -> offset."""
    return {Split(topic, topic_id, partition): offset for partition, offset in offsets.items()}


def seen(topic: str, topic_id: str, earliest: Mapping[int, int], latest: Mapping[int, int]) -> SourceSnapshot:
    """A source of one topic."""
    return SourceSnapshot(lanes(topic, topic_id, earliest), lanes(topic, topic_id, latest))


def by_partition(positions: Mapping[Split, T]) -> dict[int, T]:
    """Back again."""
    return {lane.partition: at for lane, at in positions.items()}
