"""Which content of bronze a silver table was made from: commits that add rows keep it, a full refresh does not.

Batch numbers never go back. So the number of the first batch after a full refresh tells the contents apart: a silver table that
has taken an older batch holds rows that are gone, and is replaced; and no run that has read an older bronze can be ahead of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import Txn


def generation(handle: DeltaTable | None) -> int:
    """Which content a table has; 0 if its rows were never replaced, or there is no table."""
    return int(handle.transaction_version(Txn.INCARNATION) or 0) if handle is not None else 0


def oldest_batch(bronze: DeltaTable) -> int:
    """Rows of batches before it are gone from bronze: its generation, but for a restore that was mended.

    That one begins a generation, too, and bronze keeps rows of older batches.
    """
    actions = pa.table(bronze.get_add_actions(flatten=True))
    held = pc.min(actions.column("min._batch")).as_py() if "min._batch" in actions.column_names else None
    return generation(bronze) if held is None else min(generation(bronze), int(held))


def erasures(handle: DeltaTable | None) -> int:
    """How often gamers were erased from a version of a table."""
    return int(handle.transaction_version(Txn.ERASURES) or 0) if handle is not None else 0


def silver_app(silver: DeltaTable) -> str:
    """Name of the `txn` that holds the highest bronze batch of the silver rows in a gold table.

    Another table, or other rows in it (another bronze, a full refresh, a repair, a gamer who was erased), is another name: gold
    begins anew.
    """
    erased = erasures(silver)
    return Txn.SILVER.of(silver.metadata().id, generation(silver), *([erased] if erased else []))


@dataclass(frozen=True)
class BronzeIdentity:
    """One content of bronze.

    Attributes:
        table_id: Delta's id of the table.
        generation: its first batch, if the rows before it were replaced; else 0.
    """

    table_id: str
    generation: int = 0

    @classmethod
    def of(cls, bronze: DeltaTable) -> BronzeIdentity:
        """The identity of a version of bronze."""
        return cls(str(bronze.metadata().id), generation(bronze))

    @property
    def key(self) -> str:
        """What `progress` and quarantine's decisions file it under: those of another generation say nothing about this one."""
        return f"{self.table_id}@{self.generation}" if self.generation else self.table_id

    @property
    def app(self) -> str:
        """`txn` of silver: the highest batch taken."""
        return Txn.BRONZE.of(self.table_id)

    @property
    def erased_app(self) -> str:
        """`txn` of silver: how often gamers had been erased from this bronze when rows of theirs went from silver."""
        return Txn.ERASURES.of(self.table_id)

    def erased(self, silver: DeltaTable | None) -> int:
        """The value of `erased_app`: rows read from a bronze that counts less may hold a gamer who is gone from silver."""
        return int(silver.transaction_version(self.erased_app) or 0) if silver is not None else 0

    def taken(self, silver: DeltaTable | None) -> int | None:
        """The highest batch that a silver table has of this bronze; None: it is of another one, or there is no table."""
        batch = silver.transaction_version(self.app) if silver is not None else None
        return int(batch) if batch is not None and batch >= self.generation else None
