"""Silver's Spark job with isolation of games that crash a worker: they fail, the others are staged."""

from __future__ import annotations

from collections import Counter

from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.silver.stage import Staging
from game_events.spark.crashed_workers import WorkerCrashError, bisect

#: Names that the driver can bisect; with more of them in one pass the run fails, and is tried again.
MAX_NAMES = 100_000


def stage_games(work: Staging) -> FanOutResult:
    """Stage the rows in one job; if a worker crashes, bisect: games that crash a worker alone are failed ones of the result.

    Returns:
        the workers' results; `crowded` if new names have to be counted first.

    Raises:
        WorkerCrashError: a worker crashed, and there are more than `MAX_NAMES` names.
        ExtensionError: a transformation failed.
    """
    if not work.files.files:
        return FanOutResult()
    try:
        return work.stage()
    except WorkerCrashError as error:
        if work.routing.room is not None:
            # Names are counted first, so that each half has room for exactly those that are admitted.
            return FanOutResult(crowded=True)
        pipeline = work.source.pipeline
        pipeline.on_progress(f"silver: {error}. It is retried for halves of the {pipeline.settings.names.entities}")
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
            result.refused.setdefault(why, Counter())[work.routing.counted_as(name, why)] += count
    parts, failed = bisect(sorted(games), work.stage, work.batches)
    for part in parts:
        result.add(part)
    result.failed.update(failed)
    return result
