"""Silver's one job, and what is done when a worker dies of it: one game's rows do not keep the others' from their tables."""

from __future__ import annotations

from collections import Counter

from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.silver.stage import Staging
from game_events.spark.crashed_workers import WorkerCrashError, bisect

#: Names that are told apart in the driver; with more of them in one pass (a flood) the run fails instead, and is tried again.
MAX_NAMES = 100_000


def stage_games(work: Staging) -> FanOutResult:
    """Stage the rows in one job; if a worker dies, in several, and games whose rows it dies of are among the failed ones.

    Returns:
        what the workers report; `crowded` if new names have to be counted first.

    Raises:
        WorkerCrashError: a worker dies, and there are too many names to look for the guilty ones.
        ExtensionError: a transformation failed.
    """
    if not work.files.files:
        return FanOutResult()
    try:
        return work.stage()
    except WorkerCrashError as error:
        if work.routing.room is not None:
            # Names are counted first, so that halves of them have room for exactly those that are let in.
            return FanOutResult(crowded=True)
        pipeline = work.source.pipeline
        pipeline.on_progress(f"silver: {error}. Halves of the {pipeline.settings.names.entities} are tried by themselves")
        rows = [(r["name"], int(r["rows"])) for r in work.names().limit(MAX_NAMES + 1).collect()]
        if len(rows) > MAX_NAMES:
            raise
    result, games = FanOutResult(), []
    for name, count in rows:
        why = work.routing.refusal(name)
        if work.routing.skips(name):
            continue
        if why is None:
            games.append(name)
        else:
            # Rows that get no table need no worker.
            result.refused.setdefault(why, Counter())[work.routing.counted_as(name, why)] += count
    parts, failed = bisect(sorted(games), work.stage, work.batches)
    for part in parts:
        result.add(part)
    result.failed.update(failed)
    return result
