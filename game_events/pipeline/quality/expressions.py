"""Decides by the rules whether a row is kept, dropped or rejected: columns of a layer's Spark job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.lakehouse.event_columns import COORDINATES
from game_events.rules import Action, Rule, RuleLayer

#: Rules of one bigint of bits; the sign stays unused.
BITS = 62
DISPOSITION = "_disposition"
#: Whether a row only has the results of rules, and is not written.
APART = "_apart"
#: Whether quarantine holds the row as rejected (NULL: it does not), and the batch up to which quarantine has decided.
HELD, DECIDED = "_held", "_decided"
#: Dispositions of a row: in the table; left out and counted; left out and written to quarantine; left out and in quarantine
#: already; in the table although quarantine has it as rejected.
KEEP, DROP, REJECT, HELD_BACK, READMIT = 0, 1, 2, 3, 4


def holds(sql: str) -> Column:
    """Whether a condition is TRUE; FALSE for NULL and for every error in its evaluation.

    Spark shows its `TryEval` (any exception is NULL) only behind functions of its own: adding the condition as a number of
    days to a date is the cheapest of them.
    """
    epoch, next_day = date(1970, 1, 1), date(1970, 1, 2)
    computed = F.try_add(F.lit(epoch), F.expr(sql).cast("int"))
    return F.coalesce(computed == F.lit(next_day), F.lit(False))


@dataclass(frozen=True)
class RuleColumns:
    """The rules of one layer, in the order they were declared: rule n is bit n.

    `game_column`: column of the rows that names the game.
    """

    rules: tuple[Rule, ...]
    game_column: str

    @classmethod
    def of(cls, rules: Iterable[Rule], layer: RuleLayer, game_column: str) -> RuleColumns:
        """Those of one layer."""
        return cls(tuple(r for r in rules if r.layer == layer), game_column)

    @property
    def names(self) -> list[str]:
        """Columns with the bits of violated rules."""
        return [f"_violated_{n}" for n in range(-(-len(self.rules) // BITS))]

    def violated(self) -> list[Column]:
        """A bigint for each `BITS` rules: the bits of those that the row violates."""
        parts = [self.rules[n : n + BITS] for n in range(0, len(self.rules), BITS)]
        return [
            reduce(Column.bitwiseOR, (self._bit(rule, bit) for bit, rule in enumerate(part))).alias(name)
            for name, part in zip(self.names, parts, strict=True)
        ]

    def has(self, action: Action) -> bool:
        """Whether a rule has this action."""
        return any(r.action == action for r in self.rules)

    def any_of(self, action: Action) -> Column:
        """Whether the row violates a rule with this action; needs the columns of `violated`."""
        masks = [
            sum(1 << bit for bit, rule in enumerate(self.rules[n * BITS : (n + 1) * BITS]) if rule.action == action)
            for n in range(len(self.names))
        ]
        asked = [(F.col(name), F.lit(mask).cast("bigint")) for name, mask in zip(self.names, masks, strict=True) if mask]
        found = [column.bitwiseAND(mask) != 0 for column, mask in asked]
        return reduce(Column.__or__, found, F.lit(False))

    def breaks(self, number: int) -> Column:
        """Whether the row violates one rule; needs the columns of `violated`."""
        return F.col(self.names[number // BITS]).bitwiseAND(F.lit(1 << number % BITS).cast("bigint")) != 0

    def judged(self, rows: DataFrame, held: DataFrame | None) -> DataFrame:
        """Rows of silver with `DECIDED`, the columns of `violated` and the disposition; `held`: quarantine's rejected rows.

        Up to the batch `DECIDED` a row is rejected if quarantine has it, whatever the rules are now. Later rows are decided by
        the rules; a row that quarantine has already (it is decided again) stays there while the rules keep it out of silver.
        """
        if held is None:
            rows = rows.withColumn(HELD, F.lit(None).cast("boolean"))
        else:
            # By the game, too: since a row was rejected, a redecode may have given it another one.
            held = held.withColumnRenamed("game", self.game_column).withColumn(HELD, F.lit(True))
            rows = rows.join(held, [*COORDINATES, self.game_column], "left")
        is_held, rejected, dropped = F.col(HELD).isNotNull(), self.any_of("quarantine"), self.any_of("drop")
        decided = F.col("_batch") <= F.col(DECIDED)
        disposition = (
            F.when(is_held & (decided | rejected | dropped), F.lit(HELD_BACK))
            .when(rejected & ~decided, F.lit(REJECT))
            .when(dropped, F.lit(DROP))
            .when(is_held, F.lit(READMIT))
            .otherwise(F.lit(KEEP))
        )
        return rows.select("*", *self.violated()).select("*", disposition.cast("int").alias(DISPOSITION))

    def _bit(self, rule: Rule, bit: int) -> Column:
        concerned = F.col(self.game_column).isin(*rule.games) if rule.games else F.lit(True)
        return F.when(concerned & ~holds(rule.sql), F.lit(1 << bit).cast("bigint")).otherwise(F.lit(0).cast("bigint"))
