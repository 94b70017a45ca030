"""Several pipelines, and other teams, in one Dagster instance or code location: each sees its own runs and settings only."""

from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.orchestration import resources
from game_events.orchestration.checks import fails
from game_events.orchestration.continuous import decide, past_runs, row_changing_run, run_under_way
from game_events.orchestration.keys import JOB
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import LAKEHOUSE_TAG, REPOSITORY_TAG, OwnRuns
from game_events.orchestration.sensors import Sensor, writer_of_bronze
from game_events_tests.support.keys import SILVER_KEY

DEV = {"prefix": "dev_"}

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")


@pytest.fixture
def settings(tmp_path):
    return load_settings(lakehouse=str(tmp_path / "prod"))


@pytest.fixture
def dev(tmp_path):
    return load_settings(lakehouse=str(tmp_path / "dev"), names=DEV)


def test_a_run_of_definitions_with_given_settings_works_on_their_lakehouse_and_says_so(settings, dev, instance):
    seen = []
    for given in (settings, dev):
        graph = Graph.of(given)

        @graph.op("look", "Looks at the settings of a run.", None)
        def look(context, graph=graph):
            seen.append(graph.lakehouse(context).pipeline(context.run_id).settings.lakehouse)
            yield dg.Output(None)

        job = graph.job("look_at_settings", "Looks at the settings of a run.", look)
        found = dg.Definitions(jobs=[job], resources=build_defs(given).resources)
        result = found.resolve_job_def(job.name).execute_in_process(instance=instance)
        assert result.success
        assert instance.get_run_by_id(result.run_id).tags[LAKEHOUSE_TAG] == f"{given.lakehouse}/{given.names.prefix}*"
    assert seen == [settings.lakehouse, dev.lakehouse]


def test_two_pipelines_are_in_one_code_location_and_share_no_name(settings, dev):
    both = [build_defs(settings), build_defs(dev)]
    merged = dg.Definitions.merge(*both)
    dg.Definitions.validate_loadable(merged)
    names = [
        {
            *(job.name for job in one.jobs),
            *(sensor.name for sensor in one.sensors),
            *(schedule.name for schedule in one.schedules),
            *one.resources,
            *(pool for asset in one.resolve_asset_graph().materializable_asset_keys for pool in pools(one, asset)),
        }
        for one in both
    ]
    assert not names[0] & names[1]
    assert {name.removeprefix("dev_") for name in names[1]} == names[0]


def pools(definitions, key):
    return definitions.resolve_asset_graph().get(key).pools


@pytest.mark.parametrize("tags", [{REPOSITORY_TAG: "__repository__@other_team"}, {LAKEHOUSE_TAG: "/elsewhere/*"}, {}])
def test_runs_of_others_with_the_names_of_own_jobs_hold_nobody_up(instance, settings, tags):
    for name in ("refresh", JOB, "replay"):
        instance.add_run(dg.DagsterRun(job_name=name, status=DagsterRunStatus.STARTED, tags=tags))
    own = OwnRuns.of(settings, "__repository__@game_events")
    assert writer_of_bronze(instance, own) is None
    assert run_under_way(instance, settings) is None
    assert row_changing_run(instance, own) is None
    assert "never started" in decide(past_runs(instance, own), 0.0).why


def test_a_run_of_the_own_code_location_counts_before_its_process_has_tagged_it(instance, settings):
    key = Graph.of(settings).keys.bronze
    run = dg.DagsterRun(
        job_name="__ASSET_JOB",
        status=DagsterRunStatus.STARTED,
        tags={REPOSITORY_TAG: "__repository__@game_events"},
        asset_selection={key},
    )
    instance.add_run(run)
    assert writer_of_bronze(instance, OwnRuns.of(settings, "__repository__@game_events")).run_id == run.run_id
    assert writer_of_bronze(instance, OwnRuns.of(settings, "__repository__@other")) is None


def test_where_automation_is_off_nothing_runs_until_it_is_switched_on(settings):
    off = build_defs(settings.model_copy(update={"automation": False}))
    assert {s.default_status for s in off.sensors} == {dg.DefaultSensorStatus.STOPPED}
    assert {s.default_status for s in off.schedules} == {dg.DefaultScheduleStatus.STOPPED}


def test_sparks_context_is_that_of_the_session_with_the_projects_settings(monkeypatch):
    session = SimpleNamespace(sparkContext=object())
    monkeypatch.setattr(resources, "new_session", lambda *_: session)
    assert resources.SparkResource().spark_context is session.sparkContext


def test_secrets_of_settings_that_were_given_are_masked_in_what_a_sensor_says(settings, instance):
    given = load_settings(lakehouse=settings.lakehouse, schema_registry_password="hunter2-planted")  # noqa: S106

    says = Sensor("talkative", 30, lambda _: dg.SkipReason("login with hunter2-planted failed"), "Says what it should not.")
    talkative = says.build(Graph.of(given))
    assert "planted" not in talkative(dg.build_sensor_context(instance)).skip_message
    assert "planted" not in repr(Graph.of(given))


def test_a_check_that_fails_is_not_left_out_by_a_run_by_hand(instance):
    """Without a result it would no longer hold back what comes after it."""
    key = dg.AssetCheckKey(SILVER_KEY, "rows_conserved")
    assert not fails(instance, key), "it was never made"
    for passed in (False, True, False):
        found = dg.AssetCheckEvaluation(asset_key=key.asset_key, check_name=key.name, passed=passed)
        instance.report_runless_asset_event(found)
        assert fails(instance, key) is not passed
