"""The asset `status` says in one look whether everything is well; a source of files, so no broker."""

from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import LAKEHOUSE_TAG
from game_events_tests.support.keys import SILVER_KEY


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "files").mkdir()
    return load_settings(lakehouse=str(tmp_path / "lakehouse"), source="files", files_path=str(tmp_path / "files"))


@pytest.fixture
def tick(settings, instance):
    """One tick of the sensor: what it logged (None: nothing), and what it said."""
    repository = build_defs(settings).get_repository_def()
    sensor = repository.get_sensor_def("status")
    cursor = [None]

    def look():
        found = sensor(dg.build_sensor_context(instance, cursor=cursor[0], repository_def=repository))
        if isinstance(found, dg.SkipReason):
            return None, found.skip_message
        cursor[0] = found.cursor
        (event,) = found.asset_events
        return event, found.skip_reason.skip_message

    return look


def test_it_says_that_everything_is_well_once_and_what_is_wrong_when_it_changes(tick, settings, instance):
    event, said = tick()
    assert (event.passed, said) == (True, "everything is well")
    assert tick() == (None, "everything is well")

    own = Graph.of(settings).tags
    run = dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.FAILURE, tags=own)
    instance.add_run(run)
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(asset_key=SILVER_KEY, check_name="rows_conserved", passed=False)
    )
    event, said = tick()
    assert not event.passed
    assert said == f"checks that fail: rows_conserved; the newest run of refresh failed ({run.run_id[:8]})"
    assert event.metadata["checks_that_fail"].value == 1

    instance.add_run(dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.SUCCESS, tags=own))
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(asset_key=SILVER_KEY, check_name="rows_conserved", passed=True))
    assert tick()[1] == "everything is well"


def test_failed_runs_of_others_are_not_its_business(tick, instance):
    elsewhere = {LAKEHOUSE_TAG: "/elsewhere/*"}
    instance.add_run(dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.FAILURE, tags=elsewhere))
    assert tick()[1] == "everything is well"


def test_a_source_that_does_not_answer_is_what_is_wrong(tick, settings):
    Path(settings.files_path).rmdir()
    event, said = tick()
    assert not event.passed
    assert str(settings.files_path) in said


def test_a_click_on_the_check_looks_as_the_sensor_does(settings, instance):
    definitions = build_defs(settings)
    job = definitions.resolve_implicit_global_asset_job_def()
    key = dg.AssetCheckKey(dg.AssetKey("status"), "all_is_well")
    result = job.get_subset(asset_selection=set(), asset_check_selection={key}).execute_in_process(instance=instance)
    (found,) = result.get_asset_check_evaluations()
    assert (found.passed, found.description) == (True, "everything is well")
