"""Data loss: records that the source does not have any more and bronze has not read.

Guarantee: the run stops, or it continues and reports the gap, by a setting. With `record_gap` the commit that skips the offsets
has them in its information, and fails unless bronze's offset is still the start of the gap.
"""

from collections.abc import Mapping

from game_events.config.settings import SETTING, Settings
from game_events.errors import DataError
from game_events.pipeline.context import Pipeline
from game_events.sources.core.source import FILES, Gap, MicroBatch, SourceSnapshot, Split

#: What keeps it from happening again.
_TOPICS, _FILES, _TABLE = (
    "raise the topic's retention",
    "leave files where they are until bronze has them",
    "keep that table's rows until bronze has them",
)
#: Gaps that a message names one by one.
SHOWN = 8


def refuse_unless_recorded(
    settings: Settings, gaps: tuple[Gap, ...], now: SourceSnapshot | None, what: str = "records are gone"
) -> None:
    """Stop before records are skipped, unless the setting allows it: DataError names what is lost, and the setting."""
    if settings.on_data_loss == "record_gap":
        return
    named = "; ".join(str(gap) for gap in gaps[:SHOWN]) + (f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else "")
    gone = {gap.topic for gap in gaps if gap.end is None}
    ids = sorted({(split.topic, split.topic_id) for split in (now.latest if now is not None else ()) if split.topic in gone})
    again = "".join(f" {topic} was recreated, with id {topic_id}." for topic, topic_id in ids)
    advice = _FILES if settings.source == FILES else _TABLE if settings.source_table is not None else _TOPICS
    raise DataError(
        f"{what} that {settings.source_holder} does not have any more and bronze has not: {named}.{again} Nothing was read. To "
        f"go on with what there is and have the gap recorded, set {SETTING}=record_gap; so that it does not happen again, "
        f"{advice}"
    )


def loss_messages(gaps: tuple[Gap, ...]) -> list[str]:
    """One message for each gap that a run skipped."""
    return [f"lost before they were read: {gap}" for gap in gaps]


def went_meanwhile(pipeline: Pipeline, part: MicroBatch) -> bool:
    """Whether a micro-batch cannot be read as planned any more: its first records expired, or the topic was recreated.

    Raises as `Source.snapshot`: the topic is gone, or the broker does not answer.
    """
    if pipeline.source.changed(part) is not None:
        return True
    now = pipeline.source.snapshot()
    if len(pipeline.files_gone(part)) > len(part.gaps):
        return True
    read: Mapping[Split, int] = {p: start for p, start in part.start.items() if part.end[p] > start}
    return any(start < now.earliest[p] for p, start in read.items() if p in now.earliest)
