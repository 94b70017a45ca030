"""`kafka_lag` and `new_games` on a real broker, real tables and a real instance."""

import time

import dagster as dg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from game_events.config.settings import load_settings
from game_events.orchestration.resources import Graph
from game_events.orchestration.sensors import Memory, to_add
from game_events.pipeline.runs.pending import read_lag
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.support.sensors import build_sensor

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


class Ticks:
    """Ticks of one sensor, each with the cursor of the one before."""

    def __init__(self, sensor, instance):
        self.sensor, self.instance, self.cursor = sensor, instance, None

    def __call__(self):
        found = self.sensor(dg.build_sensor_context(instance=self.instance, cursor=self.cursor))
        if isinstance(found, dg.SensorResult):
            self.cursor = found.cursor
        return found

    def remember(self, **changes):
        """Change what it remembers, as time would."""
        self.cursor = Memory.read(self.cursor).model_copy(update=changes).model_dump_json()


def skipped(found):
    """Why nothing was asked for."""
    reason = found if isinstance(found, dg.SkipReason) else found.skip_reason
    assert isinstance(found, dg.SkipReason) or not found.run_requests
    return reason.skip_message


@pytest.fixture
def tick(instance, environment):  # noqa: ARG001 - the sensor reads it
    return Ticks(build_sensor("kafka_lag", Graph.of()), instance)


def wave(*games, **options):
    return Simulation(games=games, records_per_game_and_version=5, gamers_per_game=2, **options)


def test_lag_is_shown_and_read_and_a_run_that_failed_is_tried_again(tick, runs, environment, monkeypatch):
    sent = produce(environment, wave("rummy", "spades"))
    first = tick()
    (request,) = first.run_requests
    assert f"{sent.records_total} records to read" in request.tags["game_events/reason"]
    (event,) = first.asset_events
    assert event.asset_key == dg.AssetKey(["kafka", environment.kafka_topic])
    assert event.metadata["lag"].value == sent.records_total
    assert sum(r.data["lag"] for r in event.metadata["offsets"].records) == sent.records_total

    # The run fails; nothing has moved: not at once again, and later with a key of its own.
    with monkeypatch.context() as context:
        context.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
        assert not runs.refresh().success
    tick.remember(asked_at=time.time())  # however long that run took here
    assert "1 runs made no progress; the next run is due in" in skipped(tick())
    tick.remember(asked_at=0.0)
    later = tick()
    assert later.asset_events == [], "the same offsets are told once"
    assert later.run_requests[0].run_key != request.run_key

    assert runs.refresh().success
    after = tick()
    assert f"bronze has every record of {environment.kafka_topic}" in skipped(after)
    assert after.asset_events[0].metadata["lag"].value == 0
    assert tick().asset_events == []

    # A key is never used twice, even if the cursor was cleared and a run has it.
    produce(environment, wave("rummy", seed=1))
    tick.cursor = None
    key = tick().run_requests[0].run_key
    runs.instance.add_run(dg.DagsterRun(job_name="refresh", tags={"dagster/run_key": key}, status=dg.DagsterRunStatus.FAILURE))
    tick.cursor = None
    assert tick().run_requests[0].run_key == f"{key}~2"

    # While a run writes bronze, records wait.
    under_way = runs.instance.add_run(
        dg.DagsterRun(job_name="refresh", status=dg.DagsterRunStatus.STARTED, tags=Graph.of().tags)
    )
    assert f"records wait: run {under_way.run_id[:8]} of refresh is started" in skipped(tick())


def test_a_bronze_that_was_done_by_hand_and_carried_by_nobody_is_taken_up_by_the_sensor(tick, runs, environment):
    produce(environment, wave("rummy"))
    assert runs.materialize(dg.AssetKey("bronze_events"), dg.AssetKey("quarantine_events")).success
    assert "behind the layer before: silver; the next run is due in" in skipped(tick())
    tick.remember(seen_at=0.0)
    assert len(tick().run_requests) == 1
    assert runs.refresh().success
    assert read_lag(environment, 5).behind == ()


def test_a_topic_that_was_made_anew_is_read_again_from_its_start(tick, environment):
    admin = AdminClient({"bootstrap.servers": environment.kafka_bootstrap_servers})
    keys = []
    for _ in range(2):
        ensure_topic(environment, 1)
        produce(environment, wave("rummy"))
        keys += [r.run_key for r in tick().run_requests]
        admin.delete_topics([environment.kafka_topic])[environment.kafka_topic].result()
        while environment.kafka_topic in admin.list_topics(timeout=5).topics:
            continue
    assert len(set(keys)) == 2
    assert f"has no topic '{environment.kafka_topic}'" in skipped(tick())


def test_a_broker_that_does_not_answer_is_a_skip_with_the_reason_and_the_cursor_stays(tick, environment, monkeypatch):
    produce(environment, wave("rummy"))
    tick()
    before = tick.cursor
    monkeypatch.setenv("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setattr("game_events.orchestration.sensors.TIMEOUT_S", 1.0)
    assert "Kafka at 127.0.0.1:9" in skipped(tick())
    assert tick.cursor == before


def test_a_new_bronze_that_starts_at_the_end_is_made_before_records_are_missed(tick, environment, monkeypatch):
    produce(environment, wave("rummy"))
    monkeypatch.setenv("GAME_EVENTS_STARTING_OFFSETS", "latest")
    found = tick()
    assert "where bronze starts is not settled yet" in found.run_requests[0].tags["game_events/reason"]
    assert found.asset_events[0].metadata["lag"].value == 0


def test_games_made_elsewhere_become_partitions_and_names_that_are_none_do_not(instance, environment):
    tick = Ticks(build_sensor("new_games", Graph.of()), instance)
    assert "every game of the lakehouse is a partition" in skipped(tick())
    for name in ("silver_rummy_events", "silver_unified_events", "silver_Bad Name_events", "gold_chess_player_agg"):
        write_deltalake(f"{environment.lakehouse}/{name}", pa.table({"a": [1]}))
    (request,) = tick().dynamic_partitions_requests
    assert (request.partitions_def_name, request.partition_keys) == ("games", ["rummy"])
    instance.add_dynamic_partitions("games", ["rummy"])
    assert "every game" in skipped(tick())


def test_the_limit_and_the_allow_list_hold_for_partitions_too():
    tables = {f"game_{n}" for n in range(10)}
    assert to_add(load_settings(max_games=3), {"game_0"}, set(), tables) == ["game_1", "game_2"]
    assert to_add(load_settings(max_games=1), {"game_0"}, {"game_7"}, tables) == ["game_7"], "the pipeline has let it in"
    assert to_add(load_settings(games=("game_4",)), set(), {"game_7"}, tables) == ["game_4"]
    assert to_add(load_settings(), tables, tables, tables) == []
