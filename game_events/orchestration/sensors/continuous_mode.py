"""Continuous mode is on or off: derived from the runs of the job `continuous`, so there is no second truth to keep.

A run that has lasted `CONTINUOUS_RUN_H` hands over: it ends, and a new one is started.

Off: there never was a run; or the newest one was terminated by a user, or ended by itself or by the command line's Ctrl-C. On:
it is under way; or it failed, or its process has vanished: then it is started again. A run that was ended
by a signal and not in Dagster (a shutdown of the machine, of `game-events up`) counts as failed, as in Dagster itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterRunStatus

from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import JOB
from game_events.orchestration.runs.dead_runs import UNFINISHED, end_dead_runs
from game_events.orchestration.runs.own_runs import OwnRuns
from game_events.orchestration.runs.tags import ENDED_BY_ITSELF, HANDED_OVER, REASON
from game_events.orchestration.sensors.ticks import own_runs, sensor

#: Seconds to wait after a failure, doubled with each further one, up to the greatest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10, 600
#: A run that lasted so long was a good one: pauses are short again.
HEALTHY_S = 600
#: Seconds in which the command line, if it was its run, has begun the next one by itself.
HAND_OVER_S = 15
#: Runs that are read: past so many failures the pause is the longest anyway.
RUNS_SEEN = 10


@dataclass(frozen=True)
class PastRun:
    """What the decision needs of a run; times are seconds since 1970."""

    run_id: str
    status: DagsterRunStatus
    began_s: float
    ended_s: float
    handed_over: bool = False


@dataclass(frozen=True)
class StartDecision:
    """Whether to start a run now (its key; None: no run); why or why not, in words."""

    why: str
    run_key: str | None = None


def decide(runs: Sequence[PastRun], now_s: float, job: str = JOB) -> StartDecision:
    """Decide from the newest runs, newest first."""
    if not runs:
        return StartDecision(f"continuous mode was never started: start the job `{job}` once, or `run --continuous`")
    newest = runs[0]
    if newest.status in UNFINISHED:
        return StartDecision(f"on: run {newest.run_id} is {newest.status.value.lower()}")
    if newest.handed_over:
        left = newest.ended_s + HAND_OVER_S - now_s
        why = f"on: run {newest.run_id} has lasted long enough"
        # Each run hands over once, so no key is ever used twice.
        return StartDecision(f"{why}; the next one in {left:.0f} s") if left > 0 else _after(newest, why)
    if newest.status != DagsterRunStatus.FAILURE:
        how = "was terminated" if newest.status == DagsterRunStatus.CANCELED else "ended by itself"
        return StartDecision(f"off: run {newest.run_id} {how}; start the job `{job}` to switch it on")
    failures = 0
    for run in runs:
        if run.status != DagsterRunStatus.FAILURE:
            break
        failures += 1
        if run.ended_s - run.began_s >= HEALTHY_S:
            break
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1))
    left = newest.ended_s + pause - now_s
    if left > 0:
        return StartDecision(f"on: run {newest.run_id} failed ({failures} in a row); started again in {left:.0f} s")
    # Each run fails at most once, so no key is ever used twice.
    return _after(newest, f"run {newest.run_id} failed ({failures} in a row)")


def _after(run: PastRun, why: str) -> StartDecision:
    return StartDecision(why, f"continuous-after-{run.run_id}")


def past_runs(instance: dg.DagsterInstance, own: OwnRuns, job: str = JOB) -> list[PastRun]:
    """The newest own runs of the job; dead ones are reported as failed first, which frees their pool's slot."""
    end_dead_runs(instance, own)
    found = []
    for record in own.records(instance, RUNS_SEEN, job_name=job):
        began = record.start_time or record.create_timestamp.timestamp()
        run = record.dagster_run
        # With tables that failed it is a failed run; but its user, or its time, has ended it.
        ended = run.status == DagsterRunStatus.FAILURE and run.tags.get(ENDED_BY_ITSELF) == "true"
        status = DagsterRunStatus.SUCCESS if ended else run.status
        handed_over = status == DagsterRunStatus.SUCCESS and run.tags.get(HANDED_OVER) == "true"
        found.append(PastRun(run.run_id, status, began, record.end_time or began, handed_over))
    return found


def build_continuous_mode(graph: Graph) -> dg.SensorDefinition:
    """The sensor: it decides once a tick, from the newest runs."""

    @sensor(
        graph,
        "Starts continuous mode again if its run failed or its process vanished; does nothing before it was started once, or "
        "after it was terminated.",
        10,
        job=JOB,
    )
    def continuous_mode(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        job, own = graph.keys.named(JOB), own_runs(context, graph.source.read())
        decision = decide(past_runs(context.instance, own, job), datetime.now(UTC).timestamp(), job)
        if decision.run_key is None:
            return dg.SkipReason(decision.why)
        return dg.RunRequest(run_key=decision.run_key, tags={REASON: decision.why[:200]})

    return continuous_mode
