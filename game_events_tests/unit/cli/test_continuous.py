"""`game-events run --continuous` that is ended while a run makes room for the next one; nothing real is needed."""

import os
import signal
import time

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from game_events.cli import continuous
from game_events.cli.dagster_run import JobResult
from game_events.cli.output import Output
from game_events.config.settings import load_settings
from game_events.orchestration.continuous import HAND_OVER_S, decide, past_runs
from game_events.orchestration.keys import JOB
from game_events.orchestration.runs import HANDED_OVER, OwnRuns, lakehouse_tag
from game_events.pipeline.runs.loop import LoopReport


@pytest.mark.parametrize("ctrl_c", [True, False])
def test_ctrl_c_while_a_run_hands_over_leaves_continuous_mode_off(monkeypatch, tmp_path, ctrl_c):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    begun = []

    def run_job(*_):
        with DagsterInstance.from_config(str(tmp_path)) as instance:
            handed_over = not begun
            tags = {HANDED_OVER: str(handed_over).lower(), **lakehouse_tag(load_settings())}
            run = DagsterRun(job_name=JOB, status=DagsterRunStatus.SUCCESS, tags=tags)
            begun.append(instance.add_run(run).run_id)
        if ctrl_c:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(3 * continuous.LOOK_S)
        return JobResult(begun[-1], True, LoopReport(handed_over=handed_over).to_dict())

    continuous.run_continuously(Output(as_json=True), load_settings(), None, run_job)
    assert len(begun) == (1 if ctrl_c else 2)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        decision = decide(past_runs(instance, OwnRuns.of(load_settings())), time.time() + 2 * HAND_OVER_S)
    assert (decision.run_key, decision.why.partition(":")[0]) == (None, "off")
