"""OpenLineage events: what they say of a run, and that sending them never costs one."""

import logging
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError
from game_events.lakehouse.tables import Labels
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import RunLog, recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult, TableReport
from game_events.plugins.catalog.openlineage_events import LineageRun, inputs_of, output
from game_events.sources.source import Partition
from game_events_tests.support.openlineage_spec import check_event
from game_events_tests.support.servers.webhook import Receiver

KEY = "planted-lineage-key-7d1"
RUN = "3b1f7a52-9c58-4a6e-8f0a-5f5a7c1b2d3e"
COLUMNS = [("game_name", "string"), ("gamer_id", "string"), ("event_timestamp", "timestamp"), ("_batch", "int64")]
GOLD = [("gamer_id", "string"), ("session_count", "int64"), ("min_timestamp", "t"), ("max_timestamp", "t")]
OFFSETS = {Partition("events", "t1", 0): (10, 15), Partition("events", "t1", 1): (0, 4)}


@pytest.fixture
def receiver():
    with Receiver().running() as found:
        yield found


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def pipeline(receiver=None, **more):
        url = f"http://{receiver.url.split('/')[2]}" if receiver is not None else None
        settings = load_settings(
            kafka_bootstrap_servers="broker-1:9093,broker-2:9093", kafka_topic="events", lakehouse=str(tmp_path / "lake"),
            openlineage_url=url, openlineage_api_key=KEY, owners="team:data,a@example.com", tags={"gold": {"pii": "no"}},
            **more,
        )  # fmt: skip
        return Pipeline(settings, lambda: pytest.fail("no Spark for lineage"), run_id=RUN)

    return pipeline


def report_of(pipeline):
    def entry(layer, table, game=None, columns=COLUMNS, **more):
        location = f"{pipeline.lakehouse.root}/{table}"
        values = {"rows": 7, "table_rows": 9, "version": 3, "batch": 2} | more
        return TableReport(layer, table, location, game, columns=columns, comments={"gamer_id": "Who played"}, **values)

    tables = [
        entry("bronze", "bronze_events"),
        entry("quarantine", "quarantine_events", rows=2),
        entry("silver", "silver_rummy_events", "rummy", new=True),
        entry("silver", "silver_uno_events", "uno", error="rule r is violated"),
        entry("gold", "gold_rummy_player_agg", "rummy", GOLD),
        entry("gold:devices", "gold_rummy_devices", "rummy", [("device", "string"), ("n", "int64")]),
        entry("unified", "gold_unified_player_agg", None, [("game_name", "string"), *GOLD]),
    ]
    return RunReport(tables=tables, offsets=OFFSETS, rejected=Counter(MALFORMED=2))


def by_job(events):
    found = {}
    for event in events:
        found.setdefault(event["job"]["name"], []).append(event)
    return found


def test_a_run_tells_what_each_table_was_made_of_in_events_that_the_specification_knows(make, receiver):
    pipeline = make(receiver)
    report = RunReport()
    with recorded(pipeline, report, "refresh"):
        report.add(RunResult(tables=report_of(pipeline).tables, offsets=OFFSETS))
    for event in receiver.bodies:
        check_event(event)
    jobs = by_job(receiver.bodies)
    assert receiver.bodies[0]["eventType"] == "START"
    assert [e["eventType"] for e in jobs["refresh"]] == ["START", "FAIL"]  # a table failed
    assert {e["run"]["runId"] for e in jobs["refresh"]} == {RUN}
    assert "1 tables failed: silver_uno_events" in jobs["refresh"][1]["run"]["facets"]["errorMessage"]["message"]
    ends = {name: [e["eventType"] for e in events] for name, events in jobs.items() if name != "refresh"}
    assert ends.pop("silver_uno_events") == ["START", "FAIL"]
    assert len(ends) == 6
    assert set(map(tuple, ends.values())) == {("START", "COMPLETE")}
    for name, events in jobs.items():
        if name != "refresh":
            parents = [e["run"]["facets"]["parent"] for e in events]
            assert {(p["run"]["runId"], p["job"]["name"]) for p in parents} == {(RUN, "refresh")}
            assert len({e["run"]["runId"] for e in events}) == 1

    root = pipeline.lakehouse.root
    bronze, silver, gold, own, unified = (
        jobs[n][1]
        for n in (
            "bronze_events",
            "silver_rummy_events",
            "gold_rummy_player_agg",
            "gold_rummy_devices",
            "gold_unified_player_agg",
        )
    )
    (topic,) = bronze["inputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://broker-1:9093", "events")
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == 9
    (out,) = silver["outputs"]
    assert (out["namespace"], out["name"]) == ("file", f"{root}/silver_rummy_events")
    assert out["outputFacets"]["outputStatistics"]["rowCount"] == 7
    facets = out["facets"]
    assert facets["version"]["datasetVersion"] == "3"
    assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert [(f["name"], f["type"], f.get("description")) for f in facets["schema"]["fields"]][1] == (
        "gamer_id", "string", "Who played",
    )  # fmt: skip
    assert [o["name"] for o in facets["ownership"]["owners"]] == ["team:data", "a@example.com"]
    assert [i["name"] for i in silver["inputs"]] == [f"{root}/bronze_events"]
    assert facets["columnLineage"]["fields"]["gamer_id"]["inputFields"][0]["field"] == "gamer_id"
    made = gold["outputs"][0]["facets"]
    assert made["tags"]["tags"][0]["key"] == "pii"
    how = made["columnLineage"]["fields"]["max_timestamp"]["inputFields"][0]
    assert (how["name"], how["field"], how["transformations"][0]["description"]) == (
        f"{root}/silver_rummy_events", "event_timestamp", "MAX",
    )  # fmt: skip
    assert "columnLineage" not in own["outputs"][0]["facets"]  # whoever declares it knows
    assert [i["name"] for i in unified["inputs"]] == [f"{root}/gold_rummy_player_agg"]
    assert {h["Authorization"] for h in receiver.headers} == {f"Bearer {KEY}"}
    assert report.to_dict()["lineage"] == {"sent": 16, "lost": 0, "why": ""}


def test_golds_columns_by_settings_come_from_what_their_aggregates_name(make):
    columns = {"session_count": "sum(score)", "readings": "count(*)", "last_level": "last(level)", "odd": "max(a) - min(a)"}
    pipeline = make(gold_columns=columns)
    entry = TableReport("gold", "gold_rummy_player_agg", "", "rummy", columns=[(name, "t") for name in ("gamer_id", *columns)])
    report = RunReport(tables=[entry])
    made = output(pipeline, entry, inputs_of(pipeline, entry, report)).facets["columnLineage"].fields
    found = {name: [(i.field, i.transformations[0].description) for i in of.inputFields] for name, of in made.items()}
    assert found == {
        "gamer_id": [("gamer_id", "")],
        "session_count": [("score", "SUM")],
        "readings": [("gamer_id", "COUNT")],
        "last_level": [("level", "LAST")],
    }


def test_a_run_that_goes_on_tells_in_parts_and_ends_once(make, receiver):
    pipeline = make(receiver)
    run = RunLog(pipeline, "continuous", interval_s=0.0)
    for _ in range(2):
        run.add(report_of(pipeline))
    run.close(KeyboardInterrupt())
    for event in receiver.bodies:
        check_event(event)
    jobs = by_job(receiver.bodies)
    assert [e["eventType"] for e in jobs["continuous"]] == ["START", "RUNNING", "RUNNING", "ABORT"]
    assert jobs["continuous"][0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert len({e["run"]["runId"] for e in jobs["bronze_events"]}) == 2
    assert run.extra.parts["lineage"].sent == len(receiver.bodies)


@pytest.mark.parametrize(
    ("answers", "lost", "why"),
    [([503] * 20, 2, "RetryError"), ([401], 1, "HTTP 401"), ([422], 1, "HTTP 422"), ([300.0], 2, "it took too long")],
)
def test_a_receiver_that_refuses_hangs_or_is_away_fails_no_run_and_takes_no_more_than_its_time(
    make, receiver, caplog, answers, lost, why
):
    pipeline, report = make(receiver, openlineage_timeout_s=1.5), RunReport()
    receiver.next = list(answers)
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG), recorded(pipeline, report, "refresh"):
        pass
    assert time.monotonic() - began < 300, "it does not wait for the receiver's answer"
    # Whichever time is over first: the request's own, or that of all of them.
    assert report.parts["lineage"].why in {why, "ConnectionError" if answers == [300.0] else why}
    assert report.parts["lineage"].lost == lost
    assert report.notices == [f"{lost} OpenLineage events were not taken by the receiver: {report.parts['lineage'].why}"]
    assert KEY not in caplog.text
    with recorded(make(None), again := RunReport(), "refresh"):
        pass
    assert "lineage" not in again.parts


@pytest.mark.parametrize("status", [103, 301, 302, 303, 307, 308])
def test_an_event_that_a_receiver_leads_elsewhere_is_lost_and_nobody_else_gets_it(make, receiver, status):
    with Receiver().running() as other:
        receiver.next, receiver.location = [status], other.url
        report = RunReport()
        with recorded(make(receiver), report, "refresh"):
            pass
    assert (report.parts["lineage"].lost, report.parts["lineage"].why) == (1, f"HTTP {status}")
    assert other.asked == []


def test_nobody_listening_is_told_and_an_error_of_the_run_stays_the_runs_own(make):
    with Receiver().running() as gone:
        pipeline = make(gone)
    report = RunReport()
    with pytest.raises(ValueError, match="the run's own"), recorded(pipeline, report, "refresh"):
        raise ValueError("the run's own")
    delivery = report.parts["lineage"]
    assert (delivery.sent, delivery.lost, delivery.why) == (
        0,
        2,
        "ConnectionError",
    )


def test_a_runs_error_is_told_without_secrets(make):
    pipeline = make()
    now = datetime.now(UTC)

    def told(error):
        event = LineageRun(pipeline, "refresh").ended(now, RunReport(), error)
        assert event.eventType.value == "FAIL"
        return event.run.facets["errorMessage"].message

    assert told(DataError(f"token {KEY} at http://u:p4ss@host")) == "DataError: token *** at http://***@host"
    # What others' errors quote may be a row.
    assert told(ValueError("rummy-0007")) == "ValueError: its text is in the run's log"


def test_labels_of_a_layer_win_over_those_for_all():
    labels = Labels(("team:a",), {"all": {"x": "1", "y": "1"}, "gold": {"x": "2"}})
    assert labels.of_layer("gold") == (("team:a",), (("x", "2"), ("y", "1")))
    assert labels.of_layer("own") == (("team:a",), (("x", "1"), ("y", "1")))
