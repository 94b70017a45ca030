"""Offsets of one topic, written as partition -> offset."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.pipeline.bronze.offsets import OffsetPlan
from game_events.sources.factory import make_source
from game_events.sources.source import MicroBatch, Offsets, Partition, SourceSnapshot, plan_micro_batch

T = TypeVar("T")


def splits(topic: str, topic_id: str, offsets: Mapping[int, int]) -> Offsets:
    """Partition -> offset."""
    return {Partition(topic, topic_id, partition): offset for partition, offset in offsets.items()}


def seen(topic: str, topic_id: str, earliest: Mapping[int, int], latest: Mapping[int, int]) -> SourceSnapshot:
    """A source of one topic."""
    return SourceSnapshot(splits(topic, topic_id, earliest), splits(topic, topic_id, latest))


def by_partition(positions: Mapping[Partition, T]) -> dict[int, T]:
    """Back again."""
    return {split.number: at for split, at in positions.items()}


def next_micro_batch(
    settings: Settings, bronze: DeltaTable, now: SourceSnapshot, until: Offsets, most: int
) -> MicroBatch | None:
    """What bronze would read next of a source that is not asked again."""
    wants = make_source(settings).wants

    def planned(now: SourceSnapshot, start: Offsets, until: Offsets, limit: int | None = None) -> MicroBatch | None:
        return plan_micro_batch(now, start, until, limit or most)

    source = SimpleNamespace(plan=planned, snapshot=lambda: now, missing=lambda _: (), wants=wants)
    pipeline: Any = SimpleNamespace(settings=settings, source=source)
    return OffsetPlan.of(pipeline, bronze, now, until).micro_batch
