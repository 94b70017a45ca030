"""Batch numbers and offset ranges of bronze's commits: faults, and the number of offsets that were read."""

from collections.abc import Sequence
from itertools import pairwise

from deltalake import DeltaTable

from game_events.pipeline.state.commit_info import BronzeCommit
from game_events.sources.core.source import FILES, KAFKA, Split
from game_events.sources.files.offsets import FILE_ROWS


def offsets_read(commits: Sequence[BronzeCommit]) -> tuple[int, str]:
    """Number of offsets, or of source files, and the word for it."""
    ranges = [item for c in commits for item in (c.offsets or {}).items()]
    files = any(split.kind == FILES for split, _ in ranges)
    read = sum((end - start) // (FILE_ROWS if split.kind == FILES else 1) for split, (start, end) in ranges)
    return read, "files" if files else "offsets"


def batch_faults(commits: Sequence[BronzeCommit], newest: int) -> list[str]:
    """Faults in the batch numbers: they must be consecutive and end at the table's."""
    faults = [f"batch {b.batch} follows batch {a.batch}" for a, b in pairwise(commits) if b.batch != a.batch + 1]
    if commits and commits[-1].batch != newest:
        faults.append(f"the newest commit is batch {commits[-1].batch}, the table's transaction says {newest}")
    return faults


def range_faults(handle: DeltaTable, commits: Sequence[BronzeCommit]) -> list[str]:
    """Faults in the offset ranges: each split's must meet, end at the table's next offset, and hold all records."""
    faults = []
    # A gap that a commit records is no fault of the table: the check `offsets_lost` shows it.
    recorded = {(g.topic, g.topic_id, g.partition, g.start, g.end) for c in commits for g in c.gaps}
    reached: dict[Split, int] = {}
    for commit in commits:
        ranges = commit.offsets or {}
        offsets = sum(end - start for start, end in ranges.values())
        records = commit.rows - commit.kept + commit.quarantined + commit.suppressed
        if commit.offsets is not None and records > offsets and all(split.kind == KAFKA for split in ranges):
            faults.append(f"batch {commit.batch} has {records} records of {offsets} offsets")
        for split, (start, end) in ranges.items():
            last = reached.get(split, start)
            if start != last and (*split[:3], last, start) not in recorded:
                what = "were left out" if start > last else "were read twice"
                faults.append(f"{split}: offsets {min(start, last)} to {max(start, last)} {what} before batch {commit.batch}")
            reached[split] = end
    for split, last in reached.items():
        if (held := handle.transaction_version(split.app)) != last:
            faults.append(f"{split}: the commits end at {last}, the table's transaction says {held}")
    return faults
