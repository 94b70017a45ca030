"""What fell silent and what was lost reaches a real HTTP server, whether anything runs or not. No Spark, no broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.system_tables import append_events
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table
from game_events.orchestration.checks import build_checks
from game_events.orchestration.resources import Graph, LakehouseResource, SparkResource
from game_events.orchestration.runs import OWN_ALERTS
from game_events.pipeline.checks.table_checks import fresh
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.offsets import batch_info
from game_events.plugins.alerts.sensors import ALERTS, DATA_ALARMS, Watch, send_own_alerts
from game_events.sources.source import Gap, Partition
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.keys import BRONZE_KEY, GOLD_KEY, SILVER_KEY
from game_events_tests.support.servers.webhook import Receiver

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SPLIT = Partition("events", TOPIC_ID, 0)
DAY_S = 86_400


class World:
    """A lakehouse whose source is an empty folder, a clock, an instance, and the ticks of both sensors."""

    def __init__(self, lakehouse, instance, receiver):
        self.lakehouse, self.instance, self.receiver = Lakehouse(str(lakehouse)), instance, receiver
        self.later_s, self.cursors, self.batch, self.offset = 0.0, {}, 0, 0
        assets = [dg.AssetSpec(key) for key in (BRONZE_KEY, SILVER_KEY, GOLD_KEY)]
        resources = {"lakehouse": LakehouseResource(spark=SparkResource())}
        self.repository = dg.Definitions(
            assets=assets, asset_checks=build_checks(Graph.of()), resources=resources
        ).get_repository_def()

    @property
    def bronze(self) -> Table:
        return self.lakehouse.table(BRONZE)

    def commit(self, rows=0, gaps=(), run_id=None):
        """As a run does: the first one makes the table."""
        handle = self.bronze.open()
        made = handle is not None
        self.batch += made
        start, self.offset = self.offset, self.offset + rows
        info = batch_info(self.batch, rows, 0, {SPLIT: (start, self.offset)}, gaps) | ({"run_id": run_id} if run_id else {})
        before = {Txn.BATCH: self.batch - 1} if made else {}
        table_id = str(handle.metadata().id) if made else None
        commit(Commit(self.bronze, OWN_COLUMNS, [], before, {Txn.BATCH: self.batch}, table_id, info=info))

    def days(self, games: dict[str, list[int]]):
        """Rows that each game got on each day, the last one is today."""
        for game, by_day in games.items():
            for back, rows in enumerate(reversed(by_day)):
                by_now = sum(by_day[: len(by_day) - back])
                if rows:
                    self.log(game, by_now, datetime.now(UTC) - timedelta(days=back, hours=1))

    def log(self, game: str, table_rows: int, at: datetime):
        """A run that made a game's table so long."""
        row = {"kind": "table", "layer": "silver", "game": game, "table_rows": table_rows, "time": at}
        append_events(self.lakehouse, [row], f"{game}-{at}", "a#0")

    def tick(self, later_s=0.0):
        """What one tick of both sensors told; results of checks are stored as the daemon does it."""
        self.later_s += later_s
        before = len(self.receiver.bodies)
        alarms = DATA_ALARMS.build(Graph.of(), lambda: time.time() + self.later_s)
        for one in (alarms, ALERTS.build(Graph.of())):
            cursor = self.cursors.get(one.name)
            context = dg.build_sensor_context(self.instance, cursor=cursor, repository_def=self.repository)
            found = one(context)
            assert not isinstance(found, dg.SkipReason) or "Error" not in str(found.skip_message)
            self.cursors[one.name] = found.cursor if isinstance(found, dg.SensorResult) else context.cursor
            for event in found.asset_events if isinstance(found, dg.SensorResult) else ():
                self.instance.report_runless_asset_event(event)
        return self.receiver.bodies[before:]


@pytest.fixture
def world(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    with dg.DagsterInstance.ephemeral() as instance, Receiver().running() as receiver:
        for name, value in {
            "LAKEHOUSE": tmp_path / "lakehouse",
            "SOURCE": "files",
            "FILES_PATH": tmp_path / "files",
            "ALERT_WEBHOOK_URL": receiver.url,
            "DAGSTER_URL": "http://ui.example:3000",
        }.items():
            monkeypatch.setenv(f"GAME_EVENTS_{name}", str(value))
        yield World(tmp_path / "lakehouse", instance, receiver)


def events(told):
    return [(alert["event"], alert.get("check"), alert["severity"]) for alert in told]


FRESH = "bronze_events/fresh"
VOLUME = "silver_events/volume"


def test_producers_that_stop_are_told_once_while_nothing_runs_and_so_is_that_they_send_again(world):
    world.commit()
    world.commit(rows=10)
    assert world.tick() == []
    assert world.tick(later_s=DAY_S) == [], "a daily batch is not late"
    (alert,) = world.tick(later_s=2.5 * 3600)
    assert events([alert]) == [("check_failed", FRESH, "error")]
    assert "the last records came" in alert["error"]
    assert "do its producers send?" in alert["error"]
    assert alert.keys().isdisjoint({"run_id", "job", "url"}), "no run has seen it"
    for _ in range(3):
        assert world.tick(later_s=3_600) == []
    world.later_s = 0.0
    world.commit(rows=5)
    assert events(world.tick()) == [("recovered", FRESH, "error")]


def test_where_nothing_was_ever_read_nobody_is_woken_before_it_is_overdue(world):
    assert world.tick(later_s=30 * DAY_S) == [], "there is no bronze: nothing was started yet"
    world.later_s = 0.0
    world.commit()
    assert world.tick() == []
    (alert,) = world.tick(later_s=2 * DAY_S)
    assert "no records were read since the table was created" in alert["error"]


def test_a_game_that_falls_silent_is_told_by_name_and_so_is_the_next_one_while_the_first_is_still_silent(world, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_FRESHNESS_S", "0")
    world.commit(rows=10)
    assert world.tick() == []
    steady = [100] * 9
    world.days({"chess": [*steady[1:], 0], "rummy": steady, "uno": steady})
    (alert,) = world.tick(later_s=3_600)
    assert events([alert]) == [("check_failed", VOLUME, "warning")]
    assert alert["games"] == ["chess"]
    assert "chess: fell silent (usual: 100 a day)" in alert["error"]
    assert world.tick(later_s=3_600) == []
    world.log("uno", 1_000, datetime.now(UTC) + timedelta(days=1))
    (alert,) = world.tick(later_s=DAY_S)
    assert events([alert]) == [("check_failed", VOLUME, "warning")]
    assert alert["games"] == ["chess", "rummy"]
    assert world.tick(later_s=3_600) == []


def test_records_that_were_lost_are_told_once_whichever_run_went_on_without_them(world, monkeypatch):
    gap, other = Gap("events", TOPIC_ID, 0, 10, 30), Gap("events", TOPIC_ID, 1, 0, None)
    world.commit(gaps=(gap,))
    assert world.tick() == [], "what was lost before the first look is nobody's news"
    world.commit(rows=5, gaps=(gap, other), run_id="run-1")
    world.commit(rows=5)
    (alert,) = world.tick()
    assert (alert["event"], alert["severity"], alert["run_id"]) == ("data_lost", "error", "run-1")
    assert alert["url"] == "http://ui.example:3000/runs/run-1"
    assert alert["counts"] == {"gaps": 2, "offsets_lost": 20, "gaps_of_unknown_length": 1}
    assert "events[0]: offsets 10 to 29; events[1] of the topic that was deleted" in alert["error"]
    assert world.tick() == []

    # A receiver that is busy gets it by a later tick; many at once come one after the other, none twice.
    for n in range(6):
        world.commit(rows=1, gaps=(Gap("events", TOPIC_ID, 0, 100 + n, 101 + n),))
    world.receiver.next = [503, 503, 503]
    assert world.tick() == []
    told = [alert for _ in range(3) for alert in world.tick()]
    assert [alert["event"] for alert in told] == ["data_lost"] * 6
    assert len({alert["id"] for alert in told}) == 6

    monkeypatch.setenv("GAME_EVENTS_ALERT_SEVERITY", '{"offsets_lost": "none"}')
    world.commit(rows=1, gaps=(gap,))
    assert world.tick() == []


def test_a_run_of_the_command_line_tells_what_it_lost_by_itself_and_the_sensor_leaves_it_alone(world):
    world.commit()
    assert world.tick() == []

    @dg.op
    def lose(context):
        world.commit(rows=1, gaps=(Gap("events", TOPIC_ID, 0, 5, 6),), run_id=context.run_id)
        world.commit(rows=1, gaps=(Gap("events", TOPIC_ID, 0, 7, 8),), run_id="somebody else's")

    @dg.job
    def refresh():
        lose()

    run_id = refresh.execute_in_process(instance=world.instance, tags={OWN_ALERTS: "true"}).run_id
    send_own_alerts(world.instance, load_settings(), run_id)
    assert [(body["event"], body["run_id"]) for body in world.receiver.bodies] == [("data_lost", run_id)]
    assert [alert["run_id"] for alert in world.tick()] == ["somebody else's"]


@pytest.mark.parametrize(
    ("severity", "told"),
    [
        ('{"fresh": "none"}', []),
        ('{"fresh": "warning"}', [("check_failed", FRESH, "warning")]),
        ("{}", [("check_failed", FRESH, "error")]),
    ],
)
def test_how_bad_a_silence_is_is_a_setting(world, monkeypatch, severity, told):
    monkeypatch.setenv("GAME_EVENTS_ALERT_SEVERITY", severity)
    world.commit(rows=10)
    assert world.tick() == []
    assert events(world.tick(later_s=3 * DAY_S)) == told


def test_what_the_check_says_is_in_dagster_too_and_a_look_costs_no_table_while_nothing_changes(world):
    for _ in range(3):
        world.commit(rows=10)
    world.tick()
    with opened_tables() as opened:
        for _ in range(5):
            world.tick(later_s=60)
        assert opened == []
        world.tick(later_s=3 * DAY_S)
        assert set(opened) >= {BRONZE}
    (key,) = [key for key in world.repository.asset_graph.asset_check_keys if key.name == "fresh"]
    records = world.instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
    assert [record.event.dagster_event.event_specific_data.passed for record in records] == [False, True]


def test_after_the_log_was_cleaned_up_behind_the_last_records_it_is_still_known_that_there_were_some(world):
    """Maintenance of a table that gets nothing leaves only its own commits in the log."""
    world.commit()
    world.commit(rows=10)
    DeltaTable(world.bronze.uri).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(world.bronze.uri).create_checkpoint()
    for version in range(2):
        (world.bronze.local_path / f"_delta_log/{version:020d}.json").unlink()
    pipeline = Pipeline(load_settings(), no_spark)
    assert fresh(pipeline).passed
    found = fresh(pipeline, time.time() + 2 * DAY_S)
    assert not found.passed
    assert "no records came for 172,8" in found.summary
    assert "or longer" in found.summary


def test_rows_of_a_replay_are_nothing_that_a_producer_sent(world):
    world.commit()
    world.commit(rows=10)
    handle = world.bronze.open()
    info = batch_info(2, 7)
    commit(Commit(world.bronze, OWN_COLUMNS, [], {Txn.BATCH: 1}, {Txn.BATCH: 2}, str(handle.metadata().id), info=info))
    assert not fresh(Pipeline(load_settings(), no_spark), time.time() + 2 * DAY_S).passed


def test_a_cursor_of_nobody_is_a_first_look():
    assert Watch.read("{no json") == Watch.read(None) == Watch()
