"""When automation asks for a run, by what layers were updated and by whom: no Spark, no broker.

Stub assets with the real keys stand for the real ones; the condition evaluated is the real one.
"""

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.orchestration.keys import GAMES
from game_events.orchestration.runs import CARRIES_ALL
from game_events.pipeline.checks.table_checks import CONSERVED
from game_events_tests.support.keys import BRONZE_KEY, GOLD_KEY, SILVER_KEY, UNIFIED_KEY
from game_events_tests.support.worlds import refresh_job

KEYS = {key.path[-1]: key for key in (BRONZE_KEY, SILVER_KEY, GOLD_KEY, UNIFIED_KEY)}


@dg.op(config_schema={"layers": dict, "fails": bool})
def log_layers(context):
    """Logs what a run is said to have done."""
    for layer, games in context.op_config["layers"].items():
        for game in games or [None]:
            yield dg.AssetMaterialization(KEYS[layer], partition=game)
    if context.op_config["fails"]:
        raise dg.Failure("one game failed")
    yield dg.Output(None)


@dg.job
def some_run():
    log_layers()


class World:
    """An instance, and automation's memory of it."""

    def __init__(self, instance):
        self.instance = instance
        self.defs = build_defs(load_settings(kafka_topic="game_events"))
        self.cursor = None

    def settle(self):
        """Everything that was asked for before is history."""
        while self.tick():
            continue

    def tick(self):
        """Number of runs that automation asks for, each of the unified table alone."""
        found = dg.evaluate_automation_conditions(
            self.defs, self.instance, cursor=self.cursor, asset_selection=dg.AssetSelection.all()
        )
        self.cursor = found.cursor
        requested = {key: found.get_num_requested(key) for key in KEYS.values()}
        assert {key for key, n in requested.items() if n} <= {UNIFIED_KEY}
        return found.total_requested

    def by_hand(self, **layers):
        """What a run by hand logs: one without the tag."""
        for layer, games in layers.items():
            for game in games or [None]:
                self.instance.report_runless_asset_event(dg.AssetMaterialization(KEYS[layer], partition=game))

    def run(self, tags=None, fails=False, **layers):
        """A real run."""
        config = {"ops": {"log_layers": {"config": {"layers": layers, "fails": fails}}}}
        some_run.execute_in_process(instance=self.instance, tags=tags or {}, run_config=config, raise_on_error=False)

    def check(self, passed):
        @dg.asset_check(asset=SILVER_KEY, name=CONSERVED, blocking=True)
        def stub():
            return dg.AssetCheckResult(passed=passed)

        silver = dg.AssetSpec(SILVER_KEY, partitions_def=GAMES)
        dg.materialize([silver, stub], selection=dg.AssetSelection.checks(stub), instance=self.instance, raise_on_error=False)


@pytest.fixture(scope="module")
def shared():
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("games", ["chess", "rummy", "spades"])
        found = World(instance)
        # The first thing that ever happens is a run that carries: automation's first look was at an empty event log.
        assert found.tick() == 0
        found.run(CARRIES_ALL, bronze_events=[], silver_events=["rummy"], gold_player_agg=["rummy"], gold_unified_player_agg=[])
        assert found.tick() == 0
        yield found


@pytest.fixture
def world(shared):
    shared.settle()
    return shared


def test_nothing_is_asked_for_as_long_as_nothing_happens(world):
    assert [world.tick() for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "layers",
    [
        {"bronze_events": []},
        {"silver_events": ["rummy"]},
        {"silver_events": ["chess", "spades"]},
        {"gold_player_agg": ["rummy"]},
        {"bronze_events": [], "silver_events": ["chess", "rummy", "spades"]},
    ],
    ids=["bronze", "one game of silver", "a sparse set of games", "gold", "two layers"],
)
def test_a_layer_materialized_by_hand_is_carried_on_by_one_run_and_then_by_none(world, layers):
    world.by_hand(**layers)
    assert [world.tick() for _ in range(3)] == [1, 0, 0]


def test_a_run_that_carries_all_layers_starts_no_other_whatever_it_logs(world):
    world.run(CARRIES_ALL, bronze_events=[], silver_events=["rummy"], gold_player_agg=["rummy"], gold_unified_player_agg=[])
    assert world.tick() == 0
    # Idle games, and a run that had only some of the layers to change.
    world.run(CARRIES_ALL, bronze_events=[])
    world.run(CARRIES_ALL, silver_events=["chess"], gold_player_agg=["chess"])
    assert [world.tick() for _ in range(3)] == [0, 0, 0]


def test_of_two_runs_between_two_looks_one_by_hand_counts_unless_a_run_came_after_it_that_carried_it_on(world):
    world.run(CARRIES_ALL, bronze_events=[], silver_events=["rummy"])
    world.by_hand(silver_events=["rummy"])
    assert [world.tick(), world.tick()] == [1, 0]
    world.by_hand(silver_events=["rummy"])
    world.run(CARRIES_ALL, silver_events=["rummy"], gold_player_agg=["rummy"])
    assert [world.tick(), world.tick()] == [0, 0]


def test_what_is_done_by_hand_right_after_a_run_that_carried_everything_on_is_carried_on(world):
    """Both between two looks: the run's update of the unified table is no answer to what came after it."""
    world.run(CARRIES_ALL, bronze_events=[], silver_events=["rummy"], gold_player_agg=["rummy"], gold_unified_player_agg=[])
    world.by_hand(bronze_events=[])
    assert [world.tick(), world.tick()] == [1, 0]


def test_the_run_that_carries_on_starts_no_other_however_many_games_it_changes(world):
    world.run(bronze_events=[])
    assert world.tick() == 1
    games = ["chess", "rummy", "spades"]
    world.run(CARRIES_ALL, silver_events=games, gold_player_agg=games[:2], gold_unified_player_agg=[])
    assert [world.tick(), world.tick()] == [0, 0]


def test_a_game_that_fails_does_not_keep_the_others_from_being_carried_on(world):
    # What silver logs when one of its games failed: the others, then its failure.
    world.run(fails=True, silver_events=["chess", "spades"])
    assert [world.tick(), world.tick()] == [1, 0]


def test_materializing_the_last_table_by_hand_starts_nothing_and_forgets_nothing(world):
    world.by_hand(gold_unified_player_agg=[])
    assert world.tick() == 0
    world.by_hand(silver_events=["rummy"])
    world.by_hand(gold_unified_player_agg=[])
    assert [world.tick(), world.tick()] == [1, 0]


def test_a_failed_blocking_check_holds_the_rest_back_until_it_passes(world):
    world.check(passed=False)
    world.by_hand(bronze_events=[])
    assert [world.tick(), world.tick()] == [0, 0]
    world.check(passed=True)
    assert [world.tick(), world.tick()] == [1, 0]


def test_a_game_that_is_new_is_carried_on_like_the_others(world):
    world.instance.add_dynamic_partitions("games", ["hearts"])
    world.by_hand(bronze_events=[])
    assert [world.tick(), world.tick()] == [1, 0]
    world.by_hand(silver_events=["hearts"])
    assert [world.tick(), world.tick()] == [1, 0]


def test_the_runs_that_automation_starts_are_marked_so_that_they_start_no_others():
    sensor = build_defs().resolve_sensor_def("automation")
    assert sensor.run_tags.items() >= CARRIES_ALL.items()
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    for job in ("refresh", "replay"):
        assert build_defs().resolve_job_def(job).tags.items() >= CARRIES_ALL.items()


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
@pytest.mark.parametrize("between_events", [True, False])
def test_wherever_automation_looks_during_a_refresh_it_asks_for_no_run(tmp_path, monkeypatch, between_events):
    """Before, between and after the steps, and between any two of the events that the run logs at its end, or not there."""
    with dg.DagsterInstance.ephemeral() as instance:
        world, run = World(instance), refresh_job.World(instance, tmp_path)
        games = ["chess", "rummy", "spades", "uno"]
        asked = []

        def look(*_):
            asked.append(world.tick())

        def metadata(*_, **__):
            if between_events:
                look()
            return {}

        monkeypatch.setattr("game_events.orchestration.jobs.check_after_run", look)
        monkeypatch.setattr("game_events.orchestration.events.table_metadata", metadata)
        of_games = [refresh_job.landed(game, layer) for layer in ("silver", "gold") for game in games]
        everything = [refresh_job.landed(None, "bronze"), *of_games, refresh_job.landed(None, "unified")]
        # At last a run that had nothing to add to the unified table.
        for tables in (everything, everything, of_games):
            run.work = dict.fromkeys(refresh_job.LAYERS, look) | {"unified": refresh_job.both(*tables, look)}
            assert run.run().success
            asked += [world.tick(), world.tick()]
        assert len(asked) > (30 if between_events else 20)
        assert set(asked) == {0}
        # And it is not blind: what is done by hand is carried on.
        world.by_hand(silver_events=["rummy"])
        assert [world.tick(), world.tick()] == [1, 0]
