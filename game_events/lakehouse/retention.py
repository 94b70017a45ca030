"""How long files that a table has replaced, and its log's entries, stay: for readers that are still at work, and time travel.

Two classes. *Kept* tables (bronze, silver, quarantine, logs) hold rows that are nowhere else; what is replaced there are small
files that were joined. *Derived* tables (gold, the unified table, `progress`) are replaced with every refresh, each second if
wanted, so their old files go soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from game_events.lakehouse.tables import PROGRESS

#: Hours. A log entry costs each opening of the table 2 microseconds: 2 hours of a commit a second are 15 ms.
KEPT_H, DERIVED_H = 2.0, 0.5
#: Maintenance may come so long after a file's time is over; files that are forgotten by then are orphans.
REMEMBERED_S = 2 * 3600
#: Checkpoint often: a table with 1,500 commits opens in 35 ms, 8 ms after a checkpoint.
CHECKPOINT_COMMITS = 50
#: In an object store each commit since the last checkpoint is a request of its own for whoever opens the table.
REMOTE_CHECKPOINT_COMMITS = 10


def is_derived(key: str) -> bool:
    """Whether rows of the table of this key can be made again from others, and are replaced as a whole."""
    return key.startswith("gold_") or key == PROGRESS


@dataclass(frozen=True)
class Retention:
    """Hours that replaced files and log entries stay, by class."""

    kept_h: float = KEPT_H
    derived_h: float = DERIVED_H

    def seconds(self, table: str) -> float:
        """Of one table."""
        return 3600 * (self.derived_h if is_derived(table) else self.kept_h)

    def properties(self, table: str) -> Mapping[str, str]:
        """Delta's own properties for it: whoever writes a checkpoint, or runs VACUUM elsewhere, keeps to the same times."""
        seconds = max(1, round(self.seconds(table)))
        return {
            "delta.logRetentionDuration": f"interval {seconds} seconds",
            # In checkpoints removals are remembered for longer, so that maintenance finds the files when their time is over.
            "delta.deletedFileRetentionDuration": f"interval {seconds + REMEMBERED_S} seconds",
        }

    def apply(self, table: str, handle: DeltaTable) -> bool:
        """Give a table these properties, in a commit of its own; whether it had others."""
        wanted = dict(self.properties(table))
        held = handle.metadata().configuration
        if all(held.get(key) == value for key, value in wanted.items()):
            return False
        handle.alter.set_table_properties(wanted)
        return True
