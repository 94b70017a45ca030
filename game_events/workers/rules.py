"""Rules applied to rows by workers: Spark's plan has decided which rules a row violates, workers keep, drop or reject it.

And which rows are duplicates: these are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.type_names import game_of
from game_events.lakehouse.data.columns import (
    BRONZE_ONLY,
    HEADERS,
    OWN_COLUMNS,
    OWN_NAMES,
    QUARANTINE_COLUMNS,
    SOURCE,
    TIME,
    none_if_empty,
    own_columns,
)
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Layer, Table
from game_events.rules import Action, Rule, RuleLayer
from game_events.workers.results import RuleCounts

#: Rules of one bigint of bits; the sign stays unused.
BITS = 62

#: Whether a row only has the results of rules, and is not written.
RULE_RESULT = "_apart"

DISPOSITION = "_disposition"
#: Dispositions of a row: in the table; left out and counted; left out and written to quarantine; left out and in quarantine
#: already; in the table although quarantine has it as rejected; left out as it was sent twice; the same of a row that
#: quarantine has as rejected, and that the rules let in now.
KEEP = 0
DROP = 1
REJECT = 2
HELD_BACK = 3
READMIT = 4
DUPLICATE = 5
DUPLICATE_READMITTED = 6

#: Of a row of a file that violates a rule or is a duplicate: 1 if it is a duplicate.
IS_DUPLICATE = "_is_duplicate"


@dataclass(frozen=True)
class RuleColumns:
    """The rules of one layer, in the order they were declared: rule n is bit n. `game_column` names the game."""

    rules: tuple[Rule, ...]
    game_column: str

    @classmethod
    def of(cls, rules: Iterable[Rule], layer: RuleLayer, game_column: str) -> RuleColumns:
        """Those of one layer."""
        return cls(tuple(r for r in rules if r.layer == layer), game_column)

    @property
    def names(self) -> list[str]:
        """Columns with the bits of violated rules."""
        return [f"_violated_{n}" for n in range(len(self.parts()))]

    def has(self, action: Action) -> bool:
        """Whether a rule has this action."""
        return any(r.action == action for r in self.rules)

    def parts(self) -> list[tuple[Rule, ...]]:
        """The rules of each column."""
        return [self.rules[n : n + BITS] for n in range(0, len(self.rules), BITS)]

    def masks(self, action: Action) -> list[int]:
        """For each column the bits of the rules with this action."""
        return [sum(1 << bit for bit, rule in enumerate(part) if rule.action == action) for part in self.parts()]

    def dispositions(self, violated: Sequence[npt.NDArray[np.int64]], rows: int) -> npt.NDArray[np.int32]:
        """Of rows that quarantine neither has nor has decided on, by the columns of bits (the others: `judge`)."""
        dispositions = np.full(rows, KEEP, np.int32)
        actions: tuple[tuple[Action, int], ...] = (("drop", DROP), ("quarantine", REJECT))
        for action, disposition in actions:
            for bits, mask in zip(violated, self.masks(action), strict=True):
                dispositions[(bits & mask) != 0] = disposition
        return dispositions


@dataclass(frozen=True)
class RuleOutcome:
    """Configuration of an `OutcomeWriter`; picklable.

    Attributes:
        has_disposition: rows have a disposition (silver); else all are kept.
        quarantine: the table of rejected rows, with bronze's own columns; None: no rule rejects.
        apart: rows with `RULE_RESULT` have the results of rules, the others are written.
        deduplicates: rows may be duplicates.
    """

    rules: RuleColumns
    has_disposition: bool = False
    quarantine: Table | None = None
    run_id: str = ""
    apart: bool = False
    deduplicates: bool = False

    @property
    def columns(self) -> list[str]:
        """Columns of the rows besides those of the table."""
        heavy = BRONZE_ONLY if self.quarantine is not None else ()
        disposition = [DISPOSITION] if self.has_disposition else []
        return [*self.rules.names, *disposition, *heavy, *([RULE_RESULT] if self.apart else [])]


class OutcomeWriter:
    """What one worker makes of rows with the results of rules."""

    def __init__(self, task: RuleOutcome) -> None:
        self._task = task
        self.counts: dict[str, RuleCounts] = {}
        self.writers: dict[str, StagedWriter] = {}
        self._now = datetime.now(UTC)

    def keep(self, name: str, rows: pa.Table, more: pa.Table) -> pa.Table:
        """Count rows, write rejected ones to quarantine, return those of the table (`more`: `RuleOutcome.columns`).

        `name`: what the table is called.
        """
        if self._task.apart:
            judged = more.column(RULE_RESULT)
            self._judge(name, rows.filter(judged), more.filter(judged))
            return rows.filter(pc.invert(judged))
        return self._judge(name, rows, more)

    def _judge(self, name: str, rows: pa.Table, more: pa.Table) -> pa.Table:
        counts = self.counts.setdefault(name, RuleCounts())
        counts.rows += rows.num_rows
        rules = self._task.rules.rules
        masks = self._task.rules.names
        bits = [(more.column(masks[n // BITS]).to_numpy() >> (n % BITS)) & 1 for n in range(len(rules))]
        # Row x rule.
        violated = np.stack(bits, axis=1).astype(bool) if bits else np.zeros((more.num_rows, 0), dtype=bool)
        for number, rule in enumerate(rules):
            by_rule = violated[:, number]
            count = int(by_rule.sum())
            if count:
                counts.violated[rule.name] += count
                if rule.action == "fail":
                    counts.examples.setdefault(rule.name, _coordinates(rows, int(by_rule.argmax())))
        if not self._task.has_disposition:
            return rows
        disposition = more.column(DISPOSITION).to_numpy()
        counts.dropped += int((disposition == DROP).sum())
        counts.held += int((disposition == HELD_BACK).sum())
        counts.readmitted += int((disposition == READMIT).sum())
        counts.duplicates_readmitted += int((disposition == DUPLICATE_READMITTED).sum())
        counts.duplicates += int(((disposition == DUPLICATE) | (disposition == DUPLICATE_READMITTED)).sum())
        rejected = np.flatnonzero(disposition == REJECT)
        if len(rejected):
            self._reject(name, rows.take(pa.array(rejected)), more.take(pa.array(rejected)), violated[rejected])
        kept = (disposition == KEEP) | (disposition == READMIT)
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _explained(self, name: str, violated: npt.NDArray[np.bool_]) -> tuple[list[str], list[str], pa.Array]:
        """Reasons and details of rejected rows by the rules that they violate, and which of them each row has."""
        combinations, which = np.unique(violated, axis=0, return_inverse=True)
        which = which.reshape(-1)
        reasons = []
        details = []
        # Values choose how many combinations there are.
        for flags, size in zip(combinations, np.bincount(which).tolist(), strict=True):
            broken = [rule for rule, flag in zip(self._task.rules.rules, flags, strict=True) if flag]
            first = next(rule for rule in broken if rule.action == "quarantine")
            reasons.append(first.name)
            names = ", ".join(rule.name for rule in broken)
            details.append(f"game {game_of(name)}: not true: {first.sql}; violated rules: {names}")
            self.counts[name].reasons[first.name] += size
        return reasons, details, pa.array(which)

    def _reject(self, name: str, rows: pa.Table, more: pa.Table, violated: npt.NDArray[np.bool_]) -> None:
        count = rows.num_rows
        game = game_of(name)
        reasons, details, which = self._explained(name, violated)
        own = {name: rows.column(name) for name in OWN_NAMES if name in rows.column_names}
        own |= {name: more.column(name) for name in BRONZE_ONLY}
        own[HEADERS] = none_if_empty(own[HEADERS])
        own |= {
            "layer": pa.repeat(pa.scalar(Layer.SILVER), count),
            "reason": pa.array(reasons, pa.string()).take(which),
            "detail": pa.array(details, pa.string()).take(which),
            "quarantined_at": pa.repeat(pa.scalar(self._now, TIME), count),
            "run_id": pa.repeat(pa.scalar(self._task.run_id), count),
            "game": pa.repeat(pa.scalar(game), count),
        }
        if game not in self.writers and self._task.quarantine is not None:
            # A file for each game: of two runs at once, each may lose some games and keep the others.
            columns = own_columns(QUARANTINE_COLUMNS, sourced=SOURCE in own)
            self.writers[game] = StagedWriter(self._task.quarantine, columns, game)
        self.writers[game].write_columns(own, count)


def _coordinates(rows: pa.Table, row: int) -> str:
    """Coordinates of a row of silver; empty for gold: its rows have none, and its key is personal data."""
    if "_kafka_offset" not in rows.column_names:
        return ""
    topic, partition, offset = (rows.column(c)[row].as_py() for c in ("_kafka_topic", "_kafka_partition", "_kafka_offset"))
    return f"{topic}[{partition}]@{offset}"


#: A row's file, and its place there.
FILE = "_file"
ROW = "_row"


@dataclass(frozen=True)
class Violations:
    """The rows of bronze's files that violate rules (`quality.find_violations`) or are duplicates, and what is done with them.

    Picklable. `files`: path of a file below the table's folder -> these rows of it, ascending, as an Arrow stream
    (`places_schema`). A file without any is left out.
    """

    outcome: RuleOutcome
    files: Mapping[str, bytes]

    def of_file(self, path: str) -> pa.Table:
        """A file's violating rows."""
        data = self.files.get(path)
        if data is None:
            return places_schema(self.outcome).empty_table()
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()

    def kept_out(self, path: str) -> npt.NDArray[np.int64]:
        """The places of a file's rows that are not in silver, ascending."""
        violating = self.of_file(path)
        kept_out = self._dispositions(violating) != KEEP
        return np.asarray(violating.column(ROW).to_numpy()[kept_out], np.int64)

    def schema(self, columns: pa.Schema, of_file: pa.Table) -> pa.Schema:
        """Columns to read of a file: those of the table, and bronze's own if rows are rejected."""
        rejects = self.outcome.quarantine is not None and bool((self._dispositions(of_file) == REJECT).any())
        return pa.schema([*columns, *(OWN_COLUMNS.field(name) for name in BRONZE_ONLY)]) if rejects else columns

    def added(self, rows: pa.Table, first: int, of_file: pa.Table) -> pa.Table:
        """The rows, the first of which has the place `first`, with `RuleOutcome.columns`: bronze's own of rejected ones."""
        begin, end = np.searchsorted(of_file.column(ROW).to_numpy(), [first, first + rows.num_rows])
        mine = of_file.slice(begin, end - begin)
        places = mine.column(ROW).to_numpy() - first
        dispositions = self._dispositions(mine)
        more = {name: _at(places, mine.column(name).to_numpy(), rows.num_rows) for name in self.outcome.rules.names}
        if self.outcome.has_disposition:
            more[DISPOSITION] = _at(places, dispositions, rows.num_rows)
        if self.outcome.quarantine is not None:
            more |= _only(rows, places[dispositions == REJECT])
        table = {name: rows.column(name) for name in rows.column_names if name not in BRONZE_ONLY}
        return pa.table(table | {name: more[name] for name in self.outcome.columns})

    def _dispositions(self, violating: pa.Table) -> npt.NDArray[np.int32]:
        rules = self.outcome.rules
        dispositions = rules.dispositions([violating.column(name).to_numpy() for name in rules.names], violating.num_rows)
        if self.outcome.deduplicates:
            dispositions[(dispositions == KEEP) & (violating.column(IS_DUPLICATE).to_numpy() != 0)] = DUPLICATE
        return dispositions


def _at(places: npt.NDArray[np.int64], values: npt.NDArray[Any], count: int) -> pa.Array:
    """So many values: these at their places, and zero elsewhere: no rule is violated, and the row is kept."""
    spread = np.zeros(count, values.dtype)
    spread[places] = values
    return pa.array(spread)


def _only(rows: pa.Table, places: npt.NDArray[np.int64]) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Bronze's own columns, with values at these places and NULL elsewhere."""
    if not len(places):
        return {name: pa.nulls(rows.num_rows, OWN_COLUMNS.field(name).type) for name in BRONZE_ONLY}
    taken = rows.select(BRONZE_ONLY).take(pa.array(places)).combine_chunks()
    source = np.full(rows.num_rows, -1)
    source[places] = np.arange(len(places))
    return {name: taken.column(name).take(pa.array(source, mask=source < 0)) for name in BRONZE_ONLY}


def places_schema(outcome: RuleOutcome) -> pa.Schema:
    """Columns of a file's rows that violate rules or are duplicates: their places, the bits of the rules, `IS_DUPLICATE`."""
    more = [IS_DUPLICATE] if outcome.deduplicates else []
    return pa.schema([(name, pa.int64()) for name in (ROW, *outcome.rules.names, *more)])
