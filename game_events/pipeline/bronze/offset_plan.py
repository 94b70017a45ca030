"""From which offsets to which bronze reads next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deltalake import DeltaTable

from game_events.pipeline.bronze.data_loss import refuse_unless_recorded
from game_events.pipeline.bronze.topic_changes import changes
from game_events.pipeline.bronze.truncated_log import epochs_noted, refuse_cut_log
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.offsets import identity, next_offsets
from game_events.sources.core.micro_batch import plan_micro_batch
from game_events.sources.core.source import MicroBatch, Offsets, SourceSnapshot
from game_events.sources.kafka.source import KafkaSource


@dataclass(frozen=True)
class OffsetPlan:
    """The next micro-batch of the source, and the state it was planned from.

    `reached`: split -> next offset, by bronze's transactions. `until`: split -> where the run stops. `micro_batch`: what to
    read, with gaps that the setting allows to skip; None: there is nothing to read and no gap.
    """

    now: SourceSnapshot
    reached: Offsets
    until: Offsets
    micro_batch: MicroBatch | None

    @classmethod
    def of(
        cls, pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, until: Offsets, limit: int | None = None
    ) -> OffsetPlan:
        """Plan from a version of bronze.

        `until`: split -> where the run stops; the source's end for splits that are not in it. `limit`: offsets of the
        micro-batch at most; None: the source's limit.

        Raises:
            DataError: offsets are gone that bronze has not read, and the setting says `stop`; or a topic lost its newest
                records.
        """
        source, settings = pipeline.source, pipeline.settings
        reached = next_offsets(bronze, now.latest)
        if any(offset > now.latest[p] for p, offset in reached.items()):
            now = source.snapshot()  # a concurrent run has read more since `now`
            reached = next_offsets(bronze, now.latest)
        # `until` is older than a topic that joined, or was recreated, while this run reads.
        until = now.latest | {p: end for p, end in until.items() if p in now.latest}
        if isinstance(source, KafkaSource):
            refuse_cut_log(source, bronze, now, reached)
        found = changes(settings, bronze, now, reached)
        batch = plan_micro_batch(now, reached | found.start, until, limit or source.batch_limit(reached))
        if found.anything:
            # Even without a record to read: bronze learns of the change by the commit.
            batch = batch or MicroBatch({}, {}, now.latest, (), now.earliest | reached | found.start, unit=now.unit)
            settled = {split: batch.reached[split] for split in found.settle if split not in batch.end}
            gaps = (*found.gaps, *batch.gaps)
            batch = replace(batch, start=batch.start | settled, end=batch.end | settled, gaps=gaps, joined=found.joined)
        if batch is not None:
            batch = replace(batch, gaps=(*batch.gaps, *pipeline.files_gone(batch)))
        if batch is not None and batch.gaps:
            refuse_unless_recorded(settings, batch.gaps, now)
        return cls(now, reached, until, batch)

    @property
    def ends(self) -> Offsets:
        """Split -> next offset after the micro-batch; also of splits without records, so that each has one from the start."""
        if self.micro_batch is None:
            return {}
        missing = self.now.latest.keys() - self.reached.keys() - self.micro_batch.end.keys()
        return {split: self.micro_batch.reached[split] for split in missing} | self.micro_batch.end

    @property
    def lag(self) -> Offsets:
        """Split -> records that remain after the micro-batch."""
        if self.micro_batch is not None:
            return self.micro_batch.lag
        return {p: max(0, self.now.latest[p] - offset) // self.now.unit for p, offset in self.reached.items()}

    def advance(self) -> dict[str, int]:
        """`txn` -> value that the commit of the micro-batch sets."""
        read = self.micro_batch.end if self.micro_batch is not None else {}
        offsets = {split.app: offset for split, offset in self.ends.items()}
        return offsets | identity(self.ends) | epochs_noted(self.now, read)
