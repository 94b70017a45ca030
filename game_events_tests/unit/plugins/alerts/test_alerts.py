"""Alerts reach a real HTTP server, once, and hold nothing they should not. No Spark, no broker."""

import json
import logging
import re
import socket

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from game_events.config.logging import limit_library_loggers
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.orchestration.events import fail_for
from game_events.orchestration.keys import REPORT
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import OWN_ALERTS, PROCESS_TAG, OwnRuns, end_dead_runs
from game_events.pipeline.reporting.result import TableReport
from game_events.pipeline.runs.pending import PipelineLag
from game_events.plugins.alerts import sensors
from game_events.plugins.alerts.sensors import ALERTS, AlertCursor, lag_alert, run_alerts, send_own_alerts
from game_events.plugins.alerts.webhook import VERSION, Alert, send, send_all
from game_events.sources.source import Partition, SourceSnapshot
from game_events_tests.support.fixtures.dagster import PROJECT
from game_events_tests.support.keys import SILVER_KEY
from game_events_tests.support.offsets import seen, splits
from game_events_tests.support.servers.webhook import TOKEN, Receiver

GAMER = "gamer-0042-secret"
DOCUMENT = (PROJECT / "docs" / "alerts.md").read_text()


@pytest.fixture
def receiver(monkeypatch):
    with Receiver().running() as found:
        monkeypatch.setenv("GAME_EVENTS_ALERT_WEBHOOK_URL", found.url)
        monkeypatch.setenv("GAME_EVENTS_DAGSTER_URL", "http://ui.example:3000/")
        yield found


@pytest.fixture(scope="module")
def shared():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@dg.op(config_schema={"how": str})
def fail(context):
    if context.op_config["how"] == "two tables":
        failures = [{"table": f"silver_{g}_events", "game": g, "error": f"cannot read {GAMER}"} for g in ("chess", "rummy")]
        report = {"errors": failures, "rows": {"bronze": 10, "silver": 7}}
        raise dg.Failure(f"2 tables failed: {GAMER}", metadata={REPORT: dg.MetadataValue.json(report)})
    if context.op_config["how"] == "by hand":
        fail_for([TableReport("gold", "gold_chess_player_agg", "/x", "chess", error=f"my.py raised ValueError: {GAMER}")])
    if context.op_config["how"] == "continuous":
        raise dg.Failure(f"ZeroDivisionError: {GAMER}") from ZeroDivisionError(GAMER)
    if context.op_config["how"] == "continuous, in words":
        raise dg.Failure("ConfigurationError: there is no topic") from ConfigurationError("there is no topic")
    if context.op_config["how"] == "in words":
        raise dg.Failure("Kafka at broker:9092 does not answer: is it up?")
    if context.op_config["how"] == "a bug":
        raise ZeroDivisionError(f"could not convert {GAMER}")


@dg.asset_check(asset=SILVER_KEY, name="rows_conserved", blocking=True)
def stub(context):
    return dg.AssetCheckResult(
        passed=context.run.tags["passes"] == "yes",
        severity=dg.AssetCheckSeverity(context.run.tags.get("severity", "ERROR")),
        metadata={"bronze_rows": 10, "silver_rows": 9, "text": GAMER},
        description="rows are missing or doubled",
    )


@dg.job(tags=Graph.of().tags)
def refresh():
    fail()


class World:
    """Runs, and ticks of the sensor."""

    def __init__(self, instance, receiver):
        self.instance, self.receiver, self.cursor = instance, receiver, None
        self.repository = dg.Definitions(assets=[dg.AssetSpec(SILVER_KEY)], asset_checks=[stub]).get_repository_def()

    def run(self, how="no error", **tags):
        config = {"ops": {"fail": {"config": {"how": how}}}}
        return refresh.execute_in_process(instance=self.instance, run_config=config, tags=tags, raise_on_error=False).run_id

    def check(self, passes, **tags):
        found = dg.materialize(
            [dg.AssetSpec(SILVER_KEY), stub],
            selection=dg.AssetSelection.checks(stub),
            instance=self.instance,
            tags={"passes": "yes" if passes else "no", **tags},
            raise_on_error=False,
        )
        return found.run_id

    def tick(self):
        """What one tick told, and what it said of it."""
        before = len(self.receiver.bodies)
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, repository_def=self.repository)
        found = ALERTS.build(Graph.of())(context)
        self.cursor = context.cursor
        return self.receiver.bodies[before:], found.skip_message


@pytest.fixture
def world(shared, receiver):
    found = World(shared, receiver)
    found.check(passes=True)
    # Whatever the tests before did is history.
    assert found.tick()[0] == []
    return found


def test_a_failed_run_is_told_once_with_what_failed_and_a_link(world):
    run_id = world.run("two tables")
    (alert,), _ = world.tick()
    assert alert["event"] == "run_failed"
    assert alert["id"] == f"run_failed:{run_id}"
    assert alert["version"] == VERSION == 1
    assert (alert["run_id"], alert["job"]) == (run_id, "refresh")
    assert alert["url"] == f"http://ui.example:3000/runs/{run_id}"
    assert alert["games"] == ["chess", "rummy"]
    assert alert["tables"] == ["silver_chess_events", "silver_rummy_events"]
    assert alert["counts"] == {"bronze_rows": 10, "silver_rows": 7}
    assert world.receiver.headers[-1]["Idempotency-Key"] == alert["id"]
    assert world.tick()[0] == []


def test_many_runs_that_fail_within_a_minute_are_all_told(receiver, monkeypatch):
    monkeypatch.setattr(sensors, "RUNS", 1)
    settings, cursor = load_settings(), AlertCursor()
    with dg.DagsterInstance.ephemeral() as instance:
        failed = [World(instance, receiver).run("in words") for _ in range(3)]
        for _ in range(4):
            send_all(settings, run_alerts(instance, OwnRuns.of(settings), cursor))
    assert [alert["run_id"] for alert in receiver.bodies] == failed


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("in words", "Kafka at broker:9092 does not answer: is it up?"),
        ("a bug", "ZeroDivisionError: see"),
        ("continuous", "ZeroDivisionError: see"),
        ("continuous, in words", "ConfigurationError: there is no topic"),
    ],
)
def test_the_words_are_those_of_this_projects_errors_and_of_others_only_the_class(world, how, error):
    world.run(how)
    (alert,), _ = world.tick()
    assert error in alert["error"]


def test_no_alert_holds_a_players_id_or_a_value(world):
    for how in ("by hand", "a bug", "continuous"):
        world.run(how)
    world.check(passes=False)
    told, _ = world.tick()
    assert len(told) == 4
    assert (told[0]["tables"], told[0]["games"]) == (["gold_chess_player_agg"], ["chess"])
    assert GAMER not in json.dumps(told)
    world.check(passes=True)


def test_a_run_that_succeeds_or_failed_before_the_first_tick_is_no_news(world):
    world.run()
    assert world.tick()[0] == []
    world.run("in words")
    world.cursor = None
    assert world.tick()[0] == []


def test_a_check_is_told_when_it_begins_to_fail_and_when_it_passes_again_and_not_between(world):
    world.check(passes=True)
    assert world.tick()[0] == []
    world.check(passes=False)
    (alert,), _ = world.tick()
    assert (alert["event"], alert["check"]) == ("check_failed", "silver_events/rows_conserved")
    assert alert["counts"] == {"bronze_rows": 10, "silver_rows": 9}
    assert alert["error"] == "rows are missing or doubled"
    world.check(passes=False)
    assert world.tick()[0] == []
    world.check(passes=True)
    (alert,), _ = world.tick()
    assert (alert["event"], alert["of"]) == ("recovered", "check_failed")
    # A failure that was over before anybody looked is told all the same.
    world.check(passes=False)
    world.check(passes=True)
    assert [a["event"] for a in world.tick()[0]] == ["check_failed", "recovered"]


def evaluation(passed):
    return dg.AssetCheckEvaluation(asset_key=SILVER_KEY, check_name="rows_conserved", passed=passed)


def test_a_check_that_turns_while_one_long_run_goes_on_is_told_each_time(world):
    """As in continuous mode: all evaluations of a run overwrite one record of Dagster's."""
    told = []

    @dg.op(out=dg.Out(dg.Nothing))
    def look_often():
        for passed in (True, False, False, True, False, True):
            yield evaluation(passed)
            told.append([a["event"] for a in world.tick()[0]])
            ids.extend(b["id"] for b in world.receiver.bodies[len(ids) :])
        yield dg.Output(None)

    ids = []

    @dg.job(executor_def=dg.in_process_executor)
    def long():
        look_often()

    assert long.execute_in_process(instance=world.instance).success
    assert told == [[], ["check_failed"], [], ["recovered"], ["check_failed"], ["recovered"]]
    assert len(set(ids)) == 4, "a receiver that keeps ids would take the second failure for the first"


def test_a_check_planned_before_another_run_made_it_and_failing_after_it_is_told(world):
    """The nightly job `checks` beside a run that makes the same check at its end."""
    seen = []

    @dg.asset_check(asset=SILVER_KEY, name="rows_conserved", blocking=True)
    def slow():
        world.check(passes=True)
        seen.append(world.tick()[0])
        return dg.AssetCheckResult(passed=False, description="rows are missing")

    assets = [dg.AssetSpec(SILVER_KEY), slow]
    dg.materialize(assets, selection=dg.AssetSelection.checks(slow), instance=world.instance, raise_on_error=False)
    assert seen == [[]]
    assert [a["event"] for a in world.tick()[0]] == ["check_failed"]
    world.check(passes=True)


def test_a_check_that_only_warns_is_for_people_who_look_unless_the_settings_say_how_bad_it_is(world, monkeypatch):
    world.check(passes=False, severity="WARN")
    assert world.tick()[0] == []
    monkeypatch.setenv("GAME_EVENTS_ALERT_SEVERITY", '{"rows_conserved": "warning", "rule_gone": "error"}')
    world.check(passes=False, severity="WARN")
    (alert,), said = world.tick()
    assert (alert["event"], alert["severity"]) == ("check_failed", "warning")
    assert "GAME_EVENTS_ALERT_SEVERITY names no check: rule_gone" in said
    monkeypatch.setenv("GAME_EVENTS_ALERT_SEVERITY", '{"rows_conserved": "none"}')
    world.check(passes=False)
    assert world.tick()[0] == [], "silenced is not passed"
    monkeypatch.delenv("GAME_EVENTS_ALERT_SEVERITY")
    world.check(passes=True)
    assert world.tick()[0] == []


def test_what_the_receiver_cannot_take_now_is_told_by_a_later_tick(world):
    run_id = world.run("in words")
    world.receiver.next = [503, 429, 500]
    told, said = world.tick()
    assert told == []
    assert "did not take an alert" in said
    assert [a["run_id"] for a in world.tick()[0]] == [run_id]
    assert world.tick()[0] == []


def test_a_run_of_the_command_line_tells_of_itself_and_the_sensor_leaves_it_alone(world):
    run_id = world.run("in words", **{OWN_ALERTS: "true"})
    assert world.tick()[0] == []
    send_own_alerts(world.instance, load_settings(), run_id)
    assert [b["id"] for b in world.receiver.bodies] == [f"run_failed:{run_id}"]
    for passes, events in ((False, ["check_failed"]), (False, []), (True, ["recovered"])):
        world.receiver.bodies.clear()
        checked = world.check(passes=passes, **{OWN_ALERTS: "true"})
        assert world.tick()[0] == []
        send_own_alerts(world.instance, load_settings(), checked)
        assert world.receiver.events == events


def test_a_run_of_the_command_line_that_was_killed_is_told_by_the_sensor(world):
    tags = {OWN_ALERTS: "true", PROCESS_TAG: f"{socket.gethostname()}:4000000:1", **Graph.of().tags}
    run = world.instance.add_run(dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.STARTED, tags=tags))
    end_dead_runs(world.instance, OwnRuns.of(load_settings()))
    (alert,), _ = world.tick()
    assert alert["run_id"] == run.run_id
    assert "its process" in alert["error"]


def test_without_a_webhook_nothing_is_remembered_and_nothing_is_sent_later(world, monkeypatch):
    with monkeypatch.context() as context:
        context.delenv("GAME_EVENTS_ALERT_WEBHOOK_URL")
        world.run("in words")
        assert "GAME_EVENTS_ALERT_WEBHOOK_URL is not set" in world.tick()[1]
        assert world.cursor == ""


def lagging(records, read=0):
    at, lag = (splits("events", "one", {0: n}) for n in (read, records - read))
    return PipelineLag("events", seen("events", "one", {0: 0}, {0: records}), at, lag)


def test_a_high_lag_is_told_once_and_once_more_when_it_is_gone(receiver):
    settings, cursor = load_settings(), AlertCursor()
    for lag in (999, 1_000, 5_000, 600, 400, 400, 2_000):
        cursor = AlertCursor.read(cursor.model_dump_json())
        send_all(settings, lag_alert(lagging(lag), 1_000, cursor))
    assert receiver.events == ["lag_high", "recovered", "lag_high"]
    assert receiver.bodies[0]["counts"] == {"lag": 1_000, "threshold": 1_000, "partitions": 1}
    assert len({b["id"] for b in receiver.bodies}) == 3


def test_a_high_lag_is_told_by_source(receiver):
    at = {Partition("events", "one", 0, source=name): number for name, number in (("eu", 900), ("us", 400))}
    lag = PipelineLag("eu: events; us: events", SourceSnapshot(dict.fromkeys(at, 0), at), dict.fromkeys(at, 0), at)
    send_all(load_settings(), lag_alert(lag, 1_000, AlertCursor()))
    assert receiver.bodies[0]["counts"] == {"lag": 1_300, "threshold": 1_000, "partitions": 2, "lag_eu": 900, "lag_us": 400}


def test_a_high_lag_that_could_not_be_told_is_told_by_the_next_tick(receiver):
    cursor = AlertCursor()
    receiver.next = [500, 500, 500]
    for sent in (0, 1):
        assert send_all(load_settings(), lag_alert(lagging(20), 10, cursor)) == (sent, sent == 1)
        assert cursor.lag_is_high is (sent == 1)
    assert receiver.events == ["lag_high"]


def test_the_sensor_tells_a_high_lag_and_what_else_there_is_where_the_lag_cannot_be_read(world, monkeypatch):
    assert world.tick()[0] == [], "there is no threshold"
    monkeypatch.setenv("GAME_EVENTS_ALERT_LAG_RECORDS", "10")
    monkeypatch.setattr(sensors, "read_lag", lambda *_: lagging(20))
    (alert,), _ = world.tick()
    assert alert["event"] == "lag_high"

    def away(*_):
        raise TransientError("Kafka does not answer")

    monkeypatch.setattr(sensors, "read_lag", away)
    run_id = world.run("in words")
    (alert,), said = world.tick()
    assert (alert["run_id"], said) == (run_id, "Kafka does not answer")
    monkeypatch.setattr(sensors, "read_lag", lambda *_: lagging(20))
    assert world.tick()[0] == [], "neither is told again"


ALERT = Alert(id="run_failed:x", event="run_failed", summary="run x of refresh failed")


@pytest.mark.parametrize(
    ("answers", "done", "came"),
    [([], True, 1), ([503, 429], True, 1), ([404], True, 0), ([500] * 3, False, 0), ([302], True, 0)],
)
def test_what_may_pass_is_tried_again_and_a_refusal_is_not(receiver, answers, done, came):
    receiver.next = list(answers)
    assert send(load_settings(), ALERT) is done
    assert len(receiver.bodies) == came
    assert receiver.next == []


def test_a_receiver_that_hangs_is_given_up_on_and_nothing_is_raised(receiver):
    receiver.next = [1.0, 1.0, 1.0]
    assert send(load_settings(), ALERT, timeout_s=0.1) is False


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/hook/{}", "http://no such host/{}", "https://127.0.0.1:9/{}"])
def test_the_address_of_the_webhook_is_in_no_log(receiver, address, caplog):
    caplog.set_level(logging.DEBUG)
    limit_library_loggers()
    assert send(load_settings(), ALERT)
    assert send(load_settings(alert_webhook_url=address.format(TOKEN)), ALERT) is False
    receiver.next = [403]
    assert send(load_settings(), ALERT)
    assert "sent=true" in caplog.text
    assert "sent=false" in caplog.text
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(load_settings())


def test_a_webhook_without_http_is_refused_without_being_repeated():
    with pytest.raises(Exception, match=r"GAME_EVENTS_ALERT_WEBHOOK_URL: .*must start with http") as raised:
        load_settings(alert_webhook_url=f"hook/{TOKEN}")
    assert TOKEN not in str(raised.value)


def test_the_document_describes_every_field_and_every_event():
    described = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE))
    assert set(Alert.model_fields) | {"run_failed", "check_failed", "data_lost", "lag_high", "recovered"} == described
    example = json.loads(re.search(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)[1])
    assert Alert.model_validate(example).model_dump(mode="json", exclude_none=True).keys() == example.keys()
