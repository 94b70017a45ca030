"""The job `refresh` and the assets by hand, on a real instance: what Dagster is told is what the tables hold."""

import shutil
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.tables import EVENT_LOG
from game_events.orchestration.checks import AS_OF
from game_events.orchestration.keys import GAMES, REPORT
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import logged, materializations
from game_events_tests.support.keys import BRONZE_KEY, GOLD_KEY, QUARANTINE_KEY, SILVER_KEY, UNIFIED_KEY

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

WHOLE = [("bronze_events", None), ("quarantine_events", None), ("gold_unified_player_agg", None)]


def wave(*games, **options):
    return Simulation(games=games, records_per_game_and_version=10, gamers_per_game=4, **options)


def of_games(*games):
    return [(asset, game) for asset in ("silver_events", "gold_player_agg") for game in games]


def versions(settings):
    """Delta version of every table but the event log, which every run adds to."""
    folders = [f for f in Path(settings.lakehouse).iterdir() if DeltaTable.is_deltatable(str(f))]
    return {f.name: DeltaTable(str(f)).version() for f in folders if f.name != EVENT_LOG}


def failure(result):
    return [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE][-1].step_failure_data


def test_runs_log_exactly_what_changed_and_new_games_become_partitions(runs, environment):
    sent = produce(environment, wave("rummy", "spades", poison_share=0.3))
    first = runs.refresh()
    assert first.success
    # Each exactly once.
    assert logged(first) == dict.fromkeys([*WHOLE, *of_games("rummy", "spades")], 1)
    assert sorted(runs.games) == ["rummy", "spades"]
    checks = {(c.asset_key, c.check_name): c.passed for c in first.get_asset_check_evaluations()}
    assert checks == {
        (BRONZE_KEY, "offsets_continuous"): True,
        (BRONZE_KEY, "offsets_lost"): True,
        (BRONZE_KEY, "fresh"): True,
        (BRONZE_KEY, "schema_drift"): True,
        (SILVER_KEY, "rows_conserved"): True,
    }
    reconciliation.assert_books_balance(environment, sent)

    before = versions(environment)
    second = runs.refresh()
    assert second.success
    assert logged(second) == {}
    assert second.get_asset_check_evaluations() == []
    assert versions(environment) == before
    assert sorted(runs.games) == ["rummy", "spades"]

    more = produce(environment, wave("rummy", "chess", versions=(2, 3), seed=1))
    third = runs.refresh()
    assert third.success
    unpoisoned = [at for at in WHOLE if at[0] != "quarantine_events"]
    assert logged(third) == dict.fromkeys([*unpoisoned, *of_games("rummy", "chess")], 1)
    assert sorted(runs.games) == ["chess", "rummy", "spades"]
    after = versions(environment)
    assert after["silver_spades_events"] == before["silver_spades_events"]
    assert after["gold_spades_player_agg"] == before["gold_spades_player_agg"]
    reconciliation.assert_books_balance(environment, sent.merge(more))
    for key in (SILVER_KEY, GOLD_KEY):
        assert runs.instance.get_materialized_partitions(key) == {"chess", "rummy", "spades"}


def test_metadata_says_what_the_tables_say(runs, environment):
    sent = produce(environment, wave("rummy", poison_share=0.3))
    result = runs.refresh()
    for event in materializations(result):
        meta = {key: value.value for key, value in event.metadata.items()}
        table = DeltaTable(meta["dagster/uri"])
        assert meta["dagster/row_count"] == reconciliation.count(environment, meta["dagster/table_name"]) > 0
        assert meta["delta_version"] == table.version()
        assert [c.name for c in meta["dagster/column_schema"].columns] == [f.name for f in table.schema().fields]
    meta = {m.asset_key: m.metadata for m in materializations(result)}
    offsets = [r.data for r in meta[BRONZE_KEY]["offsets"].records]
    assert sum(r["to"] - r["from"] for r in offsets) == sent.records_total
    assert meta[BRONZE_KEY]["lag"].value == 0
    assert meta[BRONZE_KEY]["schema_ids"].value == sorted(sent.schema_ids.values())
    reasons = meta[QUARANTINE_KEY]["reasons"].value
    plotted = {reason: rows for reason in reasons if (rows := meta[QUARANTINE_KEY].get(f"rejected_{reason}"))}
    assert len(plotted) == min(5, len(reasons)), "a number of its own has a plot"
    assert all(rows.value == reasons[reason] for reason, rows in plotted.items())
    assert sum(meta[QUARANTINE_KEY]["reasons"].value.values()) == sum(sent.poison.values())
    output = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    report = output[-1].step_output_data.metadata[REPORT].data
    assert report["rows"]["bronze"] == sent.decodable


def test_a_game_that_fails_alone_fails_the_run_by_name_while_the_others_are_kept_and_logged(runs, environment):
    sent = produce(environment, wave("rummy", "spades"))
    damaged = Path(environment.lakehouse) / "silver_rummy_events"
    (damaged / "_delta_log").mkdir(parents=True)
    (damaged / "_delta_log/00000000000000000000.json").write_text('{"protocol":')
    result = runs.refresh()
    assert not result.success
    assert "silver_rummy_events" in failure(result).user_failure_data.description
    assert logged(result) == dict.fromkeys([WHOLE[0], WHOLE[2], *of_games("spades")], 1)
    assert sorted(runs.games) == ["rummy", "spades"], "also a game that failed on its first rows: else it could not be red"
    states = runs.instance.get_status_by_partition(SILVER_KEY, ["rummy", "spades"], GAMES)
    assert {game: state.value for game, state in states.items()} == {"rummy": "FAILED", "spades": "MATERIALIZED"}

    shutil.rmtree(damaged)
    again = runs.refresh()
    assert again.success
    assert logged(again) == dict.fromkeys([WHOLE[2], *of_games("rummy")], 1)
    reconciliation.assert_books_balance(environment, sent)


def test_assets_by_hand_one_partition_then_several_in_one_run_each_with_its_own_metadata(runs, environment):
    sent = produce(environment, wave("rummy", "spades", "hearts", poison_share=0.1))
    bronze = runs.materialize(BRONZE_KEY, QUARANTINE_KEY)
    assert bronze.success
    assert logged(bronze) == {("bronze_events", None): 1, ("quarantine_events", None): 1}
    assert sorted(runs.games) == ["hearts", "rummy", "spades"]

    first, *_, last = runs.games
    one = runs.materialize(SILVER_KEY, games="rummy")
    assert one.success
    assert logged(one) == {("silver_events", "rummy"): 1}
    assert set(versions(environment)) == {"bronze_events", "quarantine_events", "schemas", "progress", "silver_rummy_events"}
    assert runs.check().passed
    (empty,) = materializations(runs.materialize(GOLD_KEY, games="hearts"))
    assert empty.metadata["note"].value == "no table: no rows of it are there"
    assert empty.metadata["dagster/row_count"].value == 0

    for key, table in ((SILVER_KEY, "silver_{}_events"), (GOLD_KEY, "gold_{}_player_agg")):
        several = runs.materialize(key, games=(first, last))
        assert several.success
        assert logged(several) == {(key.path[-1], game): 1 for game in runs.games}
        for event in materializations(several):
            name = table.format(event.partition)
            assert event.metadata["dagster/table_name"].value == name
            assert event.metadata["dagster/row_count"].value == reconciliation.count(environment, name)
    alone = runs.materialize(GOLD_KEY, games="spades")
    assert alone.success
    assert logged(runs.materialize(UNIFIED_KEY)) == {("gold_unified_player_agg", None): 1}
    # A run that finds nothing new says what is there, and does not read all games for the checks of one.
    for key, game in ((BRONZE_KEY, None), (UNIFIED_KEY, None), (SILVER_KEY, "rummy"), (GOLD_KEY, "spades")):
        again = runs.materialize(key, *([QUARANTINE_KEY] if key == BRONZE_KEY else []), games=game)
        (event,) = [m for m in materializations(again) if m.asset_key == key]
        name = event.metadata["dagster/table_name"].value
        assert event.metadata["dagster/row_count"].value == reconciliation.count(environment, name) > 0, key
        assert event.metadata["rows_committed"].value == 0
        made = {found.check_name for found in again.get_asset_check_evaluations() if AS_OF not in found.metadata}
        assert made <= {"offsets_continuous", "offsets_lost", "fresh", "schema_drift"}, key
    reconciliation.assert_books_balance(environment, sent)
    # The job has nothing to add to what was done by hand.
    after = runs.refresh()
    assert after.success
    assert logged(after) == {}


@pytest.mark.scenario
def test_a_full_refresh_gives_the_same_rows_as_before_in_a_new_version(runs, environment):
    produce(environment, wave("rummy", "spades"))
    produce(environment, wave("rummy", "spades", seed=1))
    assert runs.refresh().success
    before, held = versions(environment), contents(environment)
    for key, games in ((SILVER_KEY, "rummy"), (GOLD_KEY, tuple(runs.games)), (UNIFIED_KEY, None)):
        assert runs.materialize(key, games=games, full=True).success
    after = versions(environment)
    assert contents(environment) == held
    changed = {name for name in before if after[name] != before[name]} - {"progress"}
    assert changed == {
        "silver_rummy_events",
        "gold_rummy_player_agg",
        "gold_spades_player_agg",
        "gold_unified_player_agg",
    }
    assert runs.check().passed


def test_the_check_fails_on_a_fault_names_the_game_and_passes_after_a_full_refresh(runs, environment):
    produce(environment, wave("rummy", "spades"))
    assert runs.refresh().success
    assert runs.check().passed
    for fault, silver in (("a row is deleted", 19), ("a row is doubled", 21)):
        table = DeltaTable(f"{environment.lakehouse}/silver_rummy_events")
        rows = pq.read_table(table.file_uris()[0])
        if fault == "a row is deleted":
            row = rows.slice(0, 1).to_pylist()[0]
            at = f"_kafka_partition = {row['_kafka_partition']} AND _kafka_offset = {row['_kafka_offset']}"
            assert table.delete(at)["num_deleted_rows"] == 1
        else:
            write_deltalake(table, rows.slice(0, 1), mode="append")
        found = runs.check()
        assert not found.passed, fault
        assert found.severity == dg.AssetCheckSeverity.ERROR
        assert found.metadata["games_that_differ"].value == f"rummy: bronze 20, silver {silver}"

        assert runs.materialize(SILVER_KEY, games="rummy", full=True).success
        assert runs.check().passed, fault


def test_a_run_that_cannot_reach_the_registry_fails_with_the_reason_and_logs_nothing(runs, environment, monkeypatch):
    produce(environment, wave("rummy"))
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    result = runs.refresh()
    assert not result.success
    assert logged(result) == {}
    assert runs.games == []
    monkeypatch.undo()


def contents(settings):
    """Rows of silver, gold and the unified table."""
    silver = {game: reconciliation.coordinates(settings, f"silver_{game}_events") for game in ("rummy", "spades")}
    gold = {game: reconciliation.gold(settings, game) for game in ("rummy", "spades")}
    return silver, gold, sorted(reconciliation.rows(settings, "gold_unified_player_agg"))
