"""Rules in Spark's workers: rows that violate them are counted, left out, or written to quarantine."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.event_columns import (
    BRONZE_ONLY,
    HEADERS,
    OWN_COLUMNS,
    QUARANTINE_COLUMNS,
    TIME,
    none_if_empty,
)
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.quality.expressions import APART, BITS, DISPOSITION, DROP, HELD_BACK, KEEP, READMIT, REJECT
from game_events.pipeline.reporting.tables import RuleCounts
from game_events.rules import Rule


@dataclass(frozen=True)
class RuleSplit:
    """Configuration of a `Splitter`; picklable.

    Attributes:
        rules: rule n is bit n of `masks`.
        masks: columns with the bits of violated rules.
        has_disposition: rows have a disposition (silver); else all are kept.
        quarantine: the table of rejected rows, with bronze's own columns; None: no rule rejects.
        run_id: the run that rejects them.
        apart: rows with `APART` have the results of rules, the others are written.
    """

    rules: tuple[Rule, ...]
    masks: tuple[str, ...]
    has_disposition: bool = False
    quarantine: Table | None = None
    run_id: str = ""
    apart: bool = False

    @property
    def columns(self) -> list[str]:
        """Columns of the rows besides those of the table."""
        heavy = BRONZE_ONLY if self.quarantine is not None else ()
        return [*self.masks, *([DISPOSITION] if self.has_disposition else []), *heavy, *([APART] if self.apart else [])]


class Splitter:
    """One worker's pass."""

    def __init__(self, task: RuleSplit) -> None:
        self._task = task
        self.counts: dict[str, RuleCounts] = {}
        self.writers: dict[str, StagedWriter] = {}
        self._now = datetime.now(UTC)

    def keep(self, game: str, rows: pa.Table, more: pa.Table) -> pa.Table:
        """Count one game's rows, write rejected ones to quarantine, return those of the table; `more`: `RuleSplit.columns`."""
        if self._task.apart:
            judged = more.column(APART)
            self._judge(game, rows.filter(judged), more.filter(judged))
            return rows.filter(pc.invert(judged))
        return self._judge(game, rows, more)

    def _judge(self, game: str, rows: pa.Table, more: pa.Table) -> pa.Table:
        counts = self.counts.setdefault(game, RuleCounts())
        counts.rows += rows.num_rows
        violated = self._violated(more)
        for number, rule in enumerate(self._task.rules):
            found = violated[:, number]
            count = int(found.sum())
            if count:
                counts.violated[rule.name] += count
                if rule.action == "fail":
                    counts.examples.setdefault(rule.name, _coordinates(rows, int(found.argmax())))
        if not self._task.has_disposition:
            return rows
        disposition = more.column(DISPOSITION).to_numpy()
        counts.dropped += int((disposition == DROP).sum())
        counts.held += int((disposition == HELD_BACK).sum())
        counts.readmitted += int((disposition == READMIT).sum())
        rejected = np.flatnonzero(disposition == REJECT)
        if len(rejected):
            self._reject(game, rows.take(pa.array(rejected)), more.take(pa.array(rejected)), violated[rejected])
        kept = (disposition == KEEP) | (disposition == READMIT)
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _violated(self, more: pa.Table) -> npt.NDArray[np.bool_]:
        """Row x rule."""
        bits = [(more.column(self._task.masks[n // BITS]).to_numpy() >> (n % BITS)) & 1 for n in range(len(self._task.rules))]
        return np.stack(bits, axis=1).astype(bool) if bits else np.zeros((more.num_rows, 0), dtype=bool)

    def _reject(self, game: str, rows: pa.Table, more: pa.Table, violated: npt.NDArray[np.bool_]) -> None:
        count = rows.num_rows
        combinations, which = np.unique(violated, axis=0, return_inverse=True)
        which = which.reshape(-1)
        reasons, details = [], []
        for number, flags in enumerate(combinations):
            broken = [rule for rule, flag in zip(self._task.rules, flags, strict=True) if flag]
            first = next(rule for rule in broken if rule.action == "quarantine")
            reasons.append(first.name)
            names = ", ".join(rule.name for rule in broken)
            details.append(f"game {game}: not true: {first.sql}; violated rules: {names}")
            self.counts[game].reasons[first.name] += int((which == number).sum())
        own = {name: rows.column(name) for name in OWN_COLUMNS.names if name in rows.column_names}
        own |= {name: more.column(name) for name in BRONZE_ONLY}
        own[HEADERS] = none_if_empty(own[HEADERS])
        own |= {
            "layer": pa.repeat(pa.scalar(Layer.SILVER), count),
            "reason": pa.array(reasons, pa.string()).take(pa.array(which)),
            "detail": pa.array(details, pa.string()).take(pa.array(which)),
            "quarantined_at": pa.repeat(pa.scalar(self._now, TIME), count),
            "run_id": pa.repeat(pa.scalar(self._task.run_id), count),
            "game": pa.repeat(pa.scalar(game), count),
        }
        if game not in self.writers and self._task.quarantine is not None:
            # A file for each game: of two runs at once, each may lose some games and keep the others.
            self.writers[game] = StagedWriter(self._task.quarantine, QUARANTINE_COLUMNS, game)
        self.writers[game].write_columns(own, count)


def _coordinates(rows: pa.Table, row: int) -> str:
    """Coordinates of a row of silver; empty for gold: its rows have none, and its key is personal data."""
    if "_kafka_offset" not in rows.column_names:
        return ""
    topic, partition, offset = (rows.column(c)[row].as_py() for c in ("_kafka_topic", "_kafka_partition", "_kafka_offset"))
    return f"{topic}[{partition}]@{offset}"


def failed_rules(rules: tuple[Rule, ...], counts: RuleCounts | None) -> str | None:
    """The violated rules with the action fail, which prevent a game's commit; None if there are none."""
    if counts is None or not counts.examples:
        return None
    broken = [
        f"rule {rule.name} ({rule.sql}) is violated by {counts.violated[rule.name]} of {counts.rows} rows"
        + (f", for example {counts.examples[rule.name]}" if counts.examples[rule.name] else "")
        for rule in rules
        if rule.name in counts.examples
    ]
    return f"{'; '.join(broken)}. Nothing is committed before the rule or its action changes, or the rows do"
