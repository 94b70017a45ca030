"""`game-events maintain`, on tables that real runs have made."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.tables import EVENT_LOG, Lakehouse
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_unique
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import assert_books_balance, rows
from game_events_tests.support.worlds.waves import GAMES, send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def silver(settings):
    return {game: sorted(rows(settings, f"silver_{game}_events"), key=str) for game in GAMES}


def on_disk(settings, table):
    """Data files below the table's folder, in partitions too; its checkpoints are none."""
    folder = Path(settings.lakehouse, table)
    return len([file for file in folder.rglob("*.parquet") if "_delta_log" not in file.relative_to(folder).parts])


@pytest.mark.scenario
def test_maintenance_leaves_few_files_the_same_rows_and_runs_that_go_on(cli, environment, pipeline, monkeypatch):
    sent = send(environment)
    for version in (2, 3, 1):
        assert refresh(pipeline).success
        sent = sent.merge(send(environment, version=version))
    assert cli("run", "--json").code == 0
    before = silver(environment)

    counted = cli("maintain", "--dry-run", "--json").result["maintenance"]
    assert counted["silver_uno_events"]["joined"] == 4
    assert counted["gold_uno_player_agg"]["waiting"] == 3
    assert on_disk(environment, "silver_uno_events") == 4

    done = cli("maintain", "--json")
    assert (done.code, done.result["success"]) == (0, True), done.everything
    maintenance = done.result["maintenance"]
    assert (maintenance["silver_uno_events"]["joined"], maintenance["silver_uno_events"]["files"]) == (4, 1)
    assert maintenance["bronze_events"]["files"] == 1
    assert maintenance["gold_uno_player_agg"]["replaced"] == 0
    assert "stay for the time" in done.err

    # Everything is old now.
    for name in ("EVERY_VERSION_H", "REPLACED_FILES_H", "DERIVED_REPLACED_FILES_H"):
        monkeypatch.setenv(f"GAME_EVENTS_{name}", "0.000001")
    assert cli("maintain", "--json").code == 0  # then nobody begins with what is before the checkpoints
    staged_long_ago = Path(environment.lakehouse, "silver_uno_events", "part-of-a-run-that-was-killed.parquet")
    staged_long_ago.write_bytes(b"PAR1")
    os.utime(staged_long_ago, (time.time() - 8 * 86400,) * 2)
    again = cli("maintain", "--json").result["maintenance"]
    assert again["silver_uno_events"]["orphans"] == 1
    assert again["gold_uno_player_agg"]["replaced"] == 3
    for name in set(Lakehouse(environment.lakehouse).names()) - {EVENT_LOG}:  # it tells of this maintenance
        assert on_disk(environment, name) == again[name]["files"], name

    monkeypatch.setenv("GAME_EVENTS_LAYOUT", "silver=day")
    counted = cli("maintain", "--layout", "--dry-run", "--json").result["maintenance"]["silver_uno_events"]
    done = cli("maintain", "--layout", "--json").result["maintenance"]["silver_uno_events"]
    assert (counted["laid_out"], counted["spread"]) == (done["laid_out"], done["spread"])

    assert silver(environment) == before
    assert cli("run", "--json").result["tables"] == {}, "maintenance is no news to a run"
    sent = sent.merge(send(environment, version=2))
    assert cli("run", "--json").code == 0
    assert_books_balance(environment, sent)
    for check in (offsets_continuous, offsets_unique):
        found = check(pipeline)
        assert found.passed, found.summary

    kinds = cli("log", "--kind", "maintenance", "--json").result
    assert "silver_uno_events" in str(kinds)


def test_tables_of_others_below_the_root_are_never_touched(cli, environment):
    root = Path(environment.lakehouse)
    for name, by in (("gold_report", None), ("reports", ["n"])):
        for n in range(3):
            write_deltalake(root / name, pa.table({"n": [n], "s": ["x"]}), mode="append", partition_by=by)
    assert cli("maintain", "--json").result["maintenance"] == {}
    asked = cli("maintain", "--table", "reports", "--json").result["maintenance"]["reports"]
    assert "partition" in asked["error"]
    assert {DeltaTable(root / name).version() for name in ("gold_report", "reports")} == {2}


def test_a_table_that_does_not_exist_is_a_clear_error(cli, environment):  # noqa: ARG001
    said = cli("maintain", "--table", "silver_nothing_events", "--json")
    assert said.code == 1
    assert "no table silver_nothing_events" in said.result["error"]
