"""How long a table's log and the files that it no longer names are kept; entries go from the oldest on."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import grow_old, numbers, plan, thin_out


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def test_derived_tables_are_kept_for_a_shorter_time_than_others():
    retention = Retention()
    assert retention.seconds("silver_uno_events") == retention.seconds("bronze_events") == 7 * 86_400
    assert retention.seconds("gold_uno_player_agg") == retention.seconds("progress") == 86_400
    assert retention.every_s == 7200


def test_a_new_table_says_how_long_its_old_files_stay_and_a_change_of_the_setting_reaches_it(lakehouse):
    gold = lakehouse.table("gold_uno_player_agg")
    commit(plan(gold, [1], None, 1))
    assert gold.open().metadata().configuration["delta.logRetentionDuration"] == "interval 7200 seconds"
    assert not Retention().apply(gold.name, gold.open())
    assert Retention(derived_h=24 * 20).apply(gold.name, gold.open())
    assert gold.open().metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 3456000 seconds"
    assert numbers(gold) == [1]


def test_a_new_table_has_the_retention_of_the_settings_before_any_maintenance(tmp_path):
    settings = Settings(_env_file=None, lakehouse=str(tmp_path))
    assert Lakehouse.of(settings).retention == Retention()
    longer = Lakehouse.of(settings.model_copy(update={"every_version_h": 48.0, "derived_replaced_files_h": 480.0}))
    for name, days in (("gold_uno_player_agg", 40), ("silver_uno_events", 30)):
        table = longer.table(name)
        commit(plan(table, [1], None, 1))
        held = table.open().metadata().configuration
        assert held["delta.logRetentionDuration"] == f"interval {48 * 3600} seconds"
        assert held["delta.deletedFileRetentionDuration"] == f"interval {days * 86_400} seconds"
        assert not table.retention.apply(table.key, table.open())


def test_a_version_opened_before_a_checkpoint_stays_readable_although_the_checkpoint_before_is_older_than_the_retention(
    lakehouse,
):
    gold = replace(lakehouse.table("gold_uno_player_agg"), retention=Retention(1 / 3600, 1 / 3600, 1 / 3600))
    for n in range(18):
        commit(plan(gold, [n], n or None, n + 1, replace=n > 0))
    grow_old(gold)
    opened = gold.open()
    assert opened.version() == 17
    for n in range(18, 28):
        commit(plan(gold, [n], n, n + 1, replace=True))
    thin_out(gold)
    assert Path(gold.uri, "_delta_log", f"{19:020}.checkpoint.parquet").exists()
    assert (opened.transaction_version("txn"), opened.to_pyarrow_table().column("n").to_pylist()) == (18, [17])
    # What no such version needs is gone.
    left = {int(f.name[:20]) for f in Path(gold.uri, "_delta_log").glob("0*")}
    assert min(left) == 9
    assert DeltaTable(gold.uri, version=12).version() == 12


def test_a_restore_by_delta_rs_leaves_the_log_that_its_undo_needs(lakehouse):
    silver = lakehouse.silver("uno")
    for n in range(19):
        commit(plan(silver, [n], n or None, n + 1))
    for entry in Path(silver.uri, "_delta_log").glob("0*"):
        os.utime(entry, (time.time() - 86_400,) * 2)
    DeltaTable(silver.uri).restore(5)
    assert Path(silver.uri, "_delta_log", f"{19:020}.checkpoint.parquet").exists()
    assert DeltaTable(silver.uri, version=18).to_pyarrow_table().num_rows == 19
