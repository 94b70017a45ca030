"""Dagster's storage does not grow for ever: old runs go, what anybody still needs of them stays."""

import socket
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from game_events.config.settings import load_settings
from game_events.orchestration.continuous import HAND_OVER_S, HANDED_OVER, PastRun, decide
from game_events.orchestration.keys import JOB
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import ENDED_BY_ITSELF, PROCESS_TAG, OwnRuns, drop_old_runs, lakehouse_tag
from game_events_tests.support.sensors import build_sensor

PARTITIONS = dg.StaticPartitionsDefinition(["rummy", "spades"])
NOW = 1_700_000_000.0
OWN, TAGS = OwnRuns.of(load_settings()), lakehouse_tag(load_settings())


@pytest.fixture
def instance(instance_on_disk):
    """Its files are looked at."""
    return instance_on_disk


@dg.asset(partitions_def=PARTITIONS)
def silver() -> None:
    """A table of one game."""
    print("some output")


@dg.asset
def bronze() -> None:
    """A table of all games."""


@dg.op(config_schema={"fails": dg.Field(bool, default_value=False)})
def anything(context):
    if context.op_config["fails"]:
        raise dg.Failure("as told")


@dg.job(tags=TAGS)
def refresh():
    anything()


def shard(instance, run_id):
    return Path(instance.event_log_storage.path_for_shard(run_id))


def test_old_runs_go_but_for_those_with_the_newest_event_of_an_asset_or_a_partition(instance):
    def materialized(asset, partition=None):
        return dg.materialize([asset], instance=instance, partition_key=partition, tags=TAGS).run_id

    gone = [materialized(silver, "rummy"), materialized(bronze), refresh.execute_in_process(instance=instance).run_id]
    failing = {"ops": {"anything": {"config": {"fails": True}}}}
    gone.append(refresh.execute_in_process(instance=instance, raise_on_error=False, run_config=failing).run_id)
    kept = [materialized(silver, "spades"), materialized(silver, "rummy"), materialized(bronze)]
    kept.append(refresh.execute_in_process(instance=instance).run_id)  # the newest of its job
    assert shard(instance, gone[0]).is_file()

    assert drop_old_runs(instance, OWN, keep_h=1) == 0
    assert drop_old_runs(instance, OWN, keep_h=1e-9) == len(gone)
    assert {run.run_id for run in instance.get_runs()} == set(kept)
    assert drop_old_runs(instance, OWN, keep_h=1e-9) == 0
    root = Path(instance.root_directory)
    for run_id in gone:
        assert not shard(instance, run_id).exists()
        assert not [path for path in root.rglob("*") if run_id in path.name], "its output is gone, too"
    assert instance.get_materialized_partitions(silver.key) == {"rummy", "spades"}
    assert instance.get_latest_materialization_event(bronze.key).run_id == kept[2]


def test_evaluations_of_checks_go_with_their_runs_and_the_newest_of_each_check_stays(instance):
    @dg.op
    def evaluate(context):
        for number in range(1 if context.has_tag("one") else 3):
            yield dg.AssetCheckEvaluation(asset_key=bronze.key, check_name=f"check_{number}", passed=False)
        yield dg.Output(None)

    @dg.job(tags=TAGS)
    def checked():
        evaluate()

    def evaluations(name):
        storage, key = instance.event_log_storage, dg.AssetCheckKey(bronze.key, name)
        return [record.run_id for record in storage.get_asset_check_execution_history(key, 100)]

    runs = [
        checked.execute_in_process(instance=instance, tags=tags).run_id for tags in ({}, {}, {"one": "yes"}, {"one": "yes"})
    ]
    assert evaluations("check_0") == runs[::-1]
    # Of another location's checks this one knows nothing: their newest evaluations stay, their runs do not.
    assert drop_old_runs(instance, OWN, keep_h=1e-9) == 3
    assert evaluations("check_0") == runs[3:]
    assert evaluations("check_1") == evaluations("check_2") == runs[1:2]


def test_runs_that_are_still_needed_do_not_hide_those_behind_them(instance):
    needed = [dg.materialize([silver], instance=instance, partition_key=game, tags=TAGS).run_id for game in ("rummy", "spades")]
    runs = [refresh.execute_in_process(instance=instance).run_id for _ in range(2)]
    assert drop_old_runs(instance, OWN, keep_h=1e-9, page=1) == 1
    assert {run.run_id for run in instance.get_runs()} == {*needed, runs[-1]}


def test_where_all_old_runs_are_needed_what_is_newest_is_read_once_an_hour(instance, monkeypatch):
    """The sensor asks every 30 seconds, and so does each command: of thousands of games that is a lot to read."""
    reads, later_s = [], 60
    newest = instance.get_asset_records
    monkeypatch.setattr(instance, "get_asset_records", lambda *used: reads.append(later_s) or newest(*used))

    def drop():
        return drop_old_runs(instance, OWN, keep_h=1e-9, clock=lambda: time.time() + later_s)

    dg.materialize([silver], instance=instance, partition_key="rummy", tags=TAGS)
    for _ in range(3):
        assert drop() == 0
        later_s += 1_000
    assert len(reads) == 1
    dg.materialize([silver], instance=instance, partition_key="rummy", tags=TAGS)
    assert drop() == 0
    later_s += 1_000
    assert drop() == 1
    assert len(reads) == 2


def test_as_long_as_there_is_something_to_delete_nobody_waits(instance):
    for _ in range(6):
        refresh.execute_in_process(instance=instance)
    assert [drop_old_runs(instance, OWN, keep_h=1e-9, at_once=2) for _ in range(4)] == [2, 2, 1, 0]


def test_runs_that_wait_or_work_stay_however_old(instance):
    for status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING):
        instance.create_run_for_job(refresh, status=status)
    assert drop_old_runs(instance, OWN, keep_h=1e-9) == 0
    assert len(instance.get_runs()) == 2


def test_the_sensor_deletes_what_the_setting_calls_old(instance, monkeypatch):
    for _ in range(2):
        refresh.execute_in_process(instance=instance)
    sensor = build_sensor("dead_runs", Graph.of())
    for keep_h, said in (("1", False), ("0", False), ("0.0000001", True)):
        monkeypatch.setenv("GAME_EVENTS_RUN_HISTORY_H", keep_h)
        found = sensor(dg.build_sensor_context(instance=instance)).skip_message
        assert ("deleted 1 that ended long ago" in found) is said, keep_h
    assert len(instance.get_runs()) == 1


def test_runs_of_another_team_and_of_another_lakehouse_stay(instance):
    """One Dagster instance may have many code locations, with jobs of the same names."""
    dev = lakehouse_tag(load_settings(names={"prefix": "dev_"}))
    for tags in ({".dagster/repository": "__repository__@other_team"}, dev, {}):
        for _ in range(3):
            instance.add_run(dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.SUCCESS, tags=tags))
    assert drop_old_runs(instance, OWN, keep_h=1e-9) == 0
    assert drop_old_runs(instance, OwnRuns.of(load_settings(), "__repository__@other_team"), keep_h=1e-9) == 0
    assert len(instance.get_runs()) == 9
    assert drop_old_runs(instance, OwnRuns.of(load_settings(names={"prefix": "dev_"})), keep_h=1e-9) == 2


def test_settings_that_are_broken_make_the_sensor_say_so_and_end_dead_runs_all_the_same(instance, monkeypatch):
    sensor = build_sensor("dead_runs", Graph.of())
    gone = TAGS | {PROCESS_TAG: f"{socket.gethostname()}:4000000:1"}
    dead = instance.create_run_for_job(refresh, status=DagsterRunStatus.STARTED, tags=gone)
    monkeypatch.setenv("GAME_EVENTS_RUN_HISTORY_H", "-1")
    found = sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(found, dg.SkipReason)
    assert "GAME_EVENTS_RUN_HISTORY_H: Input should be greater than or equal to 0" in found.skip_message
    assert f"ended 1 runs without a process: {dead.run_id[:8]}" in found.skip_message


def past(status, *, handed_over, ended=NOW):
    return PastRun("a", status, ended - 5, ended, handed_over)


def test_a_run_that_has_lasted_long_enough_is_followed_by_another():
    newest = past(DagsterRunStatus.SUCCESS, handed_over=True)
    assert not decide([newest], NOW + HAND_OVER_S - 1).run_key, "the command line begins the next one by itself"
    decision = decide([newest], NOW + HAND_OVER_S)
    assert decision.run_key
    assert decision.run_key == "continuous-after-a"
    assert not decide([past(DagsterRunStatus.SUCCESS, handed_over=False)], NOW + HAND_OVER_S).run_key


@pytest.mark.parametrize("status", [DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE])
def test_a_user_who_ends_a_run_that_repeats_one_with_the_tag_has_ended_it(instance, status):
    """The UI's "Re-execute" takes over all tags."""
    run = instance.add_run(dg.DagsterRun(job_name=JOB, status=status, tags={HANDED_OVER: "true"}))
    found = build_sensor("continuous_mode", Graph.of())(dg.build_sensor_context(instance=instance))
    assert isinstance(found, dg.SkipReason)
    assert ENDED_BY_ITSELF not in run.tags
