"""Retention of removed files and log entries, for running readers and time travel.

Two classes. *Kept* tables (bronze, silver, quarantine, logs) hold rows that are nowhere else: only compaction removes files.
*Derived* tables (gold, the unified table, `progress`) are replaced by every refresh, so their old files are deleted soon.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable, PostCommitHookProperties

from game_events.config.naming import PROGRESS

#: Checkpoints keep removals so much longer: the latest time for maintenance to delete the file. After that it is an orphan.
REMEMBERED_S = 2 * 3600
#: Commits between two checkpoints. Each commit since the last one costs whoever opens the table 0.3 ms (in an object store a
#: request), a checkpoint of a small table costs its writer 25 ms; a run opens each table with news several times.
CHECKPOINT_COMMITS = 10
#: The same for commits by a handle that is kept from commit to commit: they do not open the table.
KEPT_CHECKPOINT_COMMITS = 30
#: Of every commit: delta-rs would delete expired entries of the log by itself, and with them the checkpoint that versions
#: within the retention need; a handle reads its checkpoint only when it is asked for progress, and would fail then.
KEEP_LOG = PostCommitHookProperties(cleanup_expired_logs=False)

#: Properties of the tables that this project makes.
PROPERTIES = frozenset(
    {
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
    }
)


def is_derived(key: str) -> bool:
    """Whether a table, by its key, is derived from others and replaced as a whole."""
    return key.startswith("gold_") or key == PROGRESS


@dataclass(frozen=True)
class Retention:
    """Hours that removed files and log entries stay, by class.

    A log entry costs each opening of the table 2 microseconds: 2 hours of a commit a second are 15 ms.
    """

    kept_h: float = 2.0
    derived_h: float = 0.5

    def seconds(self, table: str) -> float:
        """Retention of a table, by its key."""
        return 3600 * (self.derived_h if is_derived(table) else self.kept_h)

    def properties(self, table: str) -> Mapping[str, str]:
        """Delta's table properties with these times, which other writers of checkpoints, and VACUUM, follow."""
        seconds = max(1, round(self.seconds(table)))
        return {
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            # As `KEEP_LOG`, for other writers: a restore by delta-rs would delete what its undo needs.
            "delta.enableExpiredLogCleanup": "false",
            "delta.logRetentionDuration": f"interval {seconds} seconds",
            # Longer in checkpoints, so that maintenance still finds the removals.
            "delta.deletedFileRetentionDuration": f"interval {seconds + REMEMBERED_S} seconds",
        }

    def apply(self, table: str, handle: DeltaTable) -> bool:
        """Set these properties in a separate commit, if the table has others; whether it had."""
        wanted = dict(self.properties(table))
        held = handle.metadata().configuration
        if all(held.get(key) == value for key, value in wanted.items()):
            return False
        handle.alter.set_table_properties(wanted, post_commithook_properties=KEEP_LOG)
        return True
