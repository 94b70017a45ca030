"""Incarnations of a table's rows: appends keep the incarnation, a full refresh begins another one.

Batch numbers never decrease, so the first batch after a full refresh identifies bronze's incarnation: a silver table with an
older batch holds rows that are gone, and is replaced; no run that has read an older bronze can be ahead of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.lakehouse.tables import add_actions


def incarnation(handle: DeltaTable | None) -> int:
    """Incarnation of a table; 0 if its rows were never replaced, or there is no table."""
    return counter(handle, Txn.INCARNATION)


def oldest_batch(bronze: DeltaTable) -> int:
    """The oldest batch in bronze: its incarnation, or less after a repaired restore, which keeps rows of older batches."""
    actions = add_actions(bronze)
    held = pc.min(actions.column("min._batch")).as_py() if "min._batch" in actions.column_names else None
    return incarnation(bronze) if held is None else min(incarnation(bronze), int(held))


def erasures(handle: DeltaTable | None) -> int:
    """How often data subjects were erased from a version of a table."""
    return counter(handle, Txn.ERASURES)


def silver_app(silver: DeltaTable) -> str:
    """`txn` of gold with the highest bronze batch of its silver rows.

    Another silver table or incarnation, or an erasure, is another name: gold is rebuilt.
    """
    erased = erasures(silver)
    return Txn.SILVER.of(silver.metadata().id, incarnation(silver), *([erased] if erased else []))


@dataclass(frozen=True)
class BronzeIdentity:
    """One incarnation of bronze.

    `table_id`: Delta's id of the table. `incarnation`: first batch of the incarnation; 0: rows were never replaced.
    """

    table_id: str
    incarnation: int = 0

    @classmethod
    def of(cls, bronze: DeltaTable) -> BronzeIdentity:
        """The identity of a version of bronze."""
        return cls(str(bronze.metadata().id), incarnation(bronze))

    @classmethod
    def of_key(cls, key: str) -> BronzeIdentity:
        """The identity with this `key`."""
        table, _, first_batch = key.partition("@")
        return cls(table, int(first_batch or 0))

    @property
    def key(self) -> str:
        """Key of the incarnation in `progress` and in quarantine's decisions."""
        return f"{self.table_id}@{self.incarnation}" if self.incarnation else self.table_id

    @property
    def app(self) -> str:
        """`txn` of silver with its highest batch of this bronze."""
        return Txn.BRONZE.of(self.table_id)

    @property
    def erased_app(self) -> str:
        """`txn` of silver: bronze's number of erasures when rows were last erased from silver."""
        return Txn.ERASURES.of(self.table_id)

    def erased(self, silver: DeltaTable | None) -> int:
        """The value of `erased_app`: rows read from a bronze with fewer erasures may hold subjects erased from silver."""
        return counter(silver, self.erased_app)

    def taken(self, silver: DeltaTable | None) -> int | None:
        """Highest batch of this bronze in a silver table; None: it has another incarnation, or there is no table."""
        batch = txn(silver, self.app)
        return int(batch) if batch is not None and batch >= self.incarnation else None
