"""Partitions of games: which ones the sensor adds; no Spark, no broker."""

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.orchestration.resources import Graph
from game_events.pipeline.context import Pipeline, no_spark
from game_events_tests.support.sensors import build_sensor
from game_events_tests.support.tables import put


class Looks:
    """The sensor, tick by tick."""

    def __init__(self, instance, settings):
        self.instance, self.pipeline = instance, Pipeline(settings, no_spark)
        self.sensor, self.cursor = build_sensor("new_games", Graph.of(settings)), None

    def table(self, *games):
        for game in games:
            put(self.pipeline.lakehouse.silver(game), {"gamer_id": ["a"]})

    def tick(self):
        """The games that are partitions after it."""
        context = dg.build_sensor_context(self.instance, cursor=self.cursor)
        found = self.sensor.evaluate_tick(context)
        self.cursor, self.why = found.cursor, found.skip_message
        for request in found.dynamic_partitions_requests:
            self.instance.add_dynamic_partitions("games", list(request.partition_keys))
        return self.games

    @property
    def games(self):
        return sorted(self.instance.get_dynamic_partitions("games"))


@pytest.fixture
def looks(instance, tmp_path):
    return Looks(instance, load_settings(lakehouse=str(tmp_path)))


def test_a_game_with_tables_made_elsewhere_becomes_a_partition(looks):
    looks.table("chess", "uno")
    assert looks.tick() == ["chess", "uno"]
    looks.table("rummy")
    assert looks.tick() == ["chess", "rummy", "uno"]


@pytest.mark.parametrize("added_by", ["the sensor", "a run"])
def test_a_partition_that_was_deleted_by_hand_stays_away_though_its_table_is_there(looks, added_by):
    looks.table("chess", "uno")
    if added_by == "a run":
        looks.instance.add_dynamic_partitions("games", ["chess", "uno"])
    assert [looks.tick(), looks.tick()] == [["chess", "uno"]] * 2
    looks.instance.delete_dynamic_partition("games", "uno")
    assert [looks.tick(), looks.tick()] == [["chess"], ["chess"]]
    assert looks.why.endswith("deleted by hand: uno")


def test_a_deleted_partition_that_a_run_brought_back_can_be_deleted_again(looks):
    looks.table("uno")
    assert [looks.tick(), looks.tick()] == [["uno"]] * 2
    looks.instance.delete_dynamic_partition("games", "uno")
    looks.tick()
    looks.instance.add_dynamic_partitions("games", ["uno"])  # as each run does with games that it has written
    assert looks.tick() == ["uno"]
    looks.instance.delete_dynamic_partition("games", "uno")
    assert looks.tick() == []
