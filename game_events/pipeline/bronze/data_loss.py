"""Records that the source does not have any more and bronze has not read: the run stops, or goes on and says what is missing.

Guarantee: never in silence. Which of the two is a setting; with `record_gap` the commit that passes over the offsets carries
them in its note, and lands only if bronze still stands where the gap begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from deltalake import DeltaTable

from game_events.config.settings import SETTING, Settings
from game_events.errors import DataError
from game_events.pipeline.bronze.topic_changes import changes
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.micro_batch import plan_micro_batch
from game_events.sources.core.source import FILES, Gap, MicroBatch, Offsets, SourceSnapshot, Split

#: What keeps it from happening again.
_TOPICS, _FILES, _TABLE = (
    "raise the topic's retention",
    "leave files where they are until bronze has them",
    "keep that table's rows until bronze has them",
)
#: Gaps that a message names one by one.
SHOWN = 8


def next_slice(
    settings: Settings,
    handle: DeltaTable,
    now: SourceSnapshot,
    until: Offsets,
    most: int,
    gone: Callable[[MicroBatch], tuple[Gap, ...]] = lambda _part: (),
) -> MicroBatch | None:
    """The next slice of the source for bronze, past what is gone if the setting says so.

    Args:
        settings: the settings.
        handle: bronze.
        now: the source as it is.
        until: lane -> where the run is to stop.
        most: positions of the slice.
        gone: what of a slice is gone that is not gone from its beginning: single files.

    Raises:
        DataError: offsets are gone that bronze has not read, and the setting says `stop`; or a topic lost its newest records.
    """
    reached = next_offsets(handle, now.latest)
    found = changes(settings, handle, now, reached)
    part = plan_micro_batch(now, reached | found.start, until, most)
    if found.anything:
        # Even if there is nothing to read: the commit that says so is what makes bronze know of it.
        part = part or MicroBatch({}, {}, now.latest, (), now.earliest | reached | found.start, unit=now.unit)
        settled = {lane: part.reached[lane] for lane in found.settle if lane not in part.end}
        gaps = (*found.gaps, *part.gaps)
        part = replace(part, start=part.start | settled, end=part.end | settled, gaps=gaps, joined=found.joined)
    if part is not None:
        part = replace(part, gaps=(*part.gaps, *gone(part)))
    if part is not None and part.gaps:
        refuse_unless_recorded(settings, part.gaps, now)
    return part


def refuse_unless_recorded(
    settings: Settings, gaps: tuple[Gap, ...], now: SourceSnapshot | None, what: str = "records are gone"
) -> None:
    """Stop before records are passed over, unless the setting says to go on.

    Raises:
        DataError: names what is lost, and the setting.
    """
    if settings.on_data_loss == "record_gap":
        return
    named = "; ".join(str(gap) for gap in gaps[:SHOWN]) + (f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else "")
    gone = {gap.topic for gap in gaps if gap.end is None}
    ids = sorted({(lane.topic, lane.topic_id) for lane in (now.latest if now is not None else ()) if lane.topic in gone})
    again = "".join(f" {topic} was made again, with id {topic_id}." for topic, topic_id in ids)
    advice = _FILES if settings.source == FILES else _TABLE if settings.source_table is not None else _TOPICS
    raise DataError(
        f"{what} that {settings.source_holder} does not have any more and bronze has not: {named}.{again} Nothing was read. To "
        f"go on with what there is and have the gap recorded, set {SETTING}=record_gap; so that it does not happen again, "
        f"{advice}"
    )


def told(gaps: tuple[Gap, ...]) -> list[str]:
    """Sentences for a run that went on past them."""
    return [f"lost before they were read: {gap}" for gap in gaps]


def went_meanwhile(pipeline: Pipeline, part: MicroBatch) -> bool:
    """Whether a slice can no longer be read as it was planned: its first records expired, or the topic is another one.

    Raises:
        ConfigurationError, TransientError: the topic is gone, or the broker does not answer.
    """
    if pipeline.source.changed(part) is not None:
        return True
    now = pipeline.source.snapshot()
    if len(pipeline.files_gone(part)) > len(part.gaps):
        return True
    read: Mapping[Split, int] = {p: start for p, start in part.start.items() if part.end[p] > start}
    return any(start < now.earliest[p] for p, start in read.items() if p in now.earliest)
