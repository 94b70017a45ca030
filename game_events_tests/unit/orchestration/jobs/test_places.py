"""Who may use the UI sends no rows to places of his own: jobs take those that the settings name."""

from __future__ import annotations

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import ConfigurationError
from game_events.orchestration.jobs import allow_here, check_place
from game_events.plugins.files import archive as archiving


def refused(place, *allowed):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_JOB_PLACES"):
        check_place(load_settings(job_places=allowed), place)
    return True


@pytest.mark.parametrize(
    "place",
    [
        "/data/archive",
        "/data/archive/x/",
        "file:///data/archive/x",
        "s3://bucket/archive",
        "s3a://bucket/archive/x",
        "s3://bucket/archive//x",
    ],
)
def test_a_place_that_is_named_and_what_is_below_it_is_taken(place):
    assert check_place(load_settings(job_places="/data/archive/, s3://bucket/archive"), place) is None


@pytest.mark.parametrize(
    "place",
    [
        "/data",
        "/data/archive2",
        "/data/archive/../x",
        "s3://other/archive",
        "s3://bucket/archive2",
        "s3://bucket/archive/../x",
        "gs://bucket/archive",
    ],
)
def test_any_other_is_refused(place):
    assert refused(place, "/data/archive", "s3://bucket/archive")
    assert refused(place)


def test_a_link_out_of_a_place_leads_nowhere(tmp_path):
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "link").symlink_to(tmp_path)
    assert refused(str(tmp_path / "archive" / "link" / "x"), str(tmp_path / "archive"))


def test_a_command_may_use_the_place_that_it_names_and_no_other(tmp_path):
    assert refused(str(tmp_path))
    allow_here(str(tmp_path))
    check_place(load_settings(), str(tmp_path))
    assert refused(f"{tmp_path}/else")


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_a_job_of_the_ui_archives_to_no_other_place(tmp_path, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "lakehouse"))
    config = {"ops": {archiving.OP: {"config": {"to": str(tmp_path / "elsewhere")}}}}
    job = build_defs(load_settings()).resolve_job_def("archive")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
    (failure,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert "GAME_EVENTS_JOB_PLACES" in str(failure.step_failure_data.user_failure_data.description)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("job", ["refresh", "archive"])
def test_no_run_of_the_ui_can_be_given_settings_of_spark(job):
    wanted = {"resources": {"lakehouse": {"config": {"spark": {"spark_config": {"spark.jars": "http://evil/x.jar"}}}}}}
    ops = {"ops": {archiving.OP: {"config": {"to": "x"}}}} if job == "archive" else {}
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(build_defs(load_settings()).resolve_job_def(job), wanted | ops)
