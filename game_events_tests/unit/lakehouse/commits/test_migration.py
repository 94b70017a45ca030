"""The migration's steps, on tables of a few rows; test_old_lakehouse.py of the plug-in `files` migrates a whole lakehouse."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from game_events.errors import ConfigurationError, ConflictError, DataError, ReadOnlyError
from game_events.lakehouse.commits import migration
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.migration import apply, changes
from game_events.lakehouse.commits.transactions import Txn, restored_lately
from game_events.lakehouse.table_properties import FORMER_IDS, KEY, format_of
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def write(lakehouse, name, ids, *, partition_by=None, rows=3):
    """A table as 0.1 wrote it."""
    schema = pa.schema([pa.field("n", pa.int64(), metadata={KEY: "1"}), ("game_name", pa.string())])
    content = pa.table({"n": range(rows), "game_name": ["uno"] * rows}, schema=schema)
    properties = CommitProperties(app_transactions=[Transaction(app, value) for app, value in ids.items()])
    uri = f"{lakehouse.root}/{name}"
    write_deltalake(uri, content, mode="append", commit_properties=properties, partition_by=partition_by)
    return DeltaTable(uri)


def migrate(lakehouse):
    planned = list(changes(lakehouse))
    for change in planned:
        apply(lakehouse, change)
    return [(change.table.key, change.becomes and change.becomes.key) for change in planned]


def ids_of(lakehouse, key):
    table = lakehouse.table(key)
    return TableLog(table).transactions(table.open_to_read().version())


def test_the_new_ids_are_those_of_today():
    assert set(FORMER_IDS.values()) <= set(Txn)
    assert not set(FORMER_IDS) & set(Txn)


def test_each_id_gets_its_new_name_and_keeps_its_value_and_bronze_is_the_last_table(lakehouse):
    write(lakehouse, BRONZE, {"batch": 7, "generation": 5, "reset": 2, "quarantined": 9})
    write(
        lakehouse, QUARANTINE, {"slices": 4, "reset:an-id": 2, "silver_decided:an-id@5:uno": 6, "silver_generation:an-id@5": 1}
    )
    write(lakehouse, "silver_uno_events", {"bronze:an-id": 7, "generation": 1})
    write(lakehouse, "source_files", {"next": 12, "commits": 3})
    write(lakehouse, "reports", {"batch": 3})
    before = {key: lakehouse.table(key).open_of_any_format().file_uris() for key in lakehouse.names()}
    assert migrate(lakehouse) == [(key, None) for key in (QUARANTINE, "silver_uno_events", "source_files", BRONZE)]
    assert (
        ids_of(lakehouse, BRONZE).items() >= {"batch": 7, "incarnation": 5, "full_refresh": 2, "records_quarantined": 9}.items()
    )
    decided = {"decided_batch:an-id@5:uno": 6, "decided_incarnation:an-id@5": 1}
    assert ids_of(lakehouse, QUARANTINE).items() >= ({"micro_batches": 4, "full_refresh:an-id": 2} | decided).items()
    assert ids_of(lakehouse, "silver_uno_events").items() >= {"bronze:an-id": 7, "incarnation": 1}.items()
    assert ids_of(lakehouse, "source_files").items() >= {"next_file": 12, "commits": 3}.items()
    assert format_of(lakehouse.table("reports").open()) == 1, "no table of the pipeline's"
    assert {key: lakehouse.table(key).open().file_uris() for key in lakehouse.names()} == before
    assert migrate(lakehouse) == []


def test_ids_by_game_of_a_table_of_all_games(lakehouse):
    lakehouse.entity = "game_name"
    write(lakehouse, "silver_events", {"generation/uno": 3, "bronze:an-id/uno": 8}, partition_by=["game_name"])
    assert lakehouse.is_partitioned
    migrate(lakehouse)
    handle = lakehouse.table("silver_events").open()
    assert (format_of(handle), handle.transaction_version("incarnation/uno")) == (4, 3)
    assert lakehouse.silver("uno").open().transaction_version(Txn.INCARNATION) == 3


def test_ids_are_read_from_the_checkpoint_and_the_entries_since(lakehouse):
    write(lakehouse, BRONZE, {"generation": 1, "kafka:t:id:0": 10}).create_checkpoint()
    write(lakehouse, BRONZE, {"generation": 2})
    log = Path(lakehouse.root, BRONZE, "_delta_log")
    (log / f"{0:020}.json").unlink()
    migrate(lakehouse)
    held = {"generation": 2, "incarnation": 2, "kafka:t:id:0": 10}
    assert ids_of(lakehouse, BRONZE) == held
    (log / f"{1:020}.json").unlink()
    with pytest.raises(DataError, match=f"lacks entries.*{1:020}.json"):
        TableLog(lakehouse.table(BRONZE)).transactions(2)


def test_a_table_with_a_new_name_is_copied_with_its_log_and_removed(lakehouse):
    write(lakehouse, "rest_deliveries", {"run": 3})
    old = write(lakehouse, "rest_deliveries", {"run": 4})
    assert migrate(lakehouse) == [("rest_deliveries", "export_outcomes")]
    new = lakehouse.table("export_outcomes").open()
    assert (new.metadata().id, new.version(), new.transaction_version("export_run")) == (old.metadata().id, 2, 4)
    assert new.to_pyarrow_table().num_rows == 6
    assert not Path(lakehouse.root, "rest_deliveries").exists()
    assert DeltaTable(new.table_uri, version=0).to_pyarrow_table().num_rows == 3, "older versions are there, too"


@pytest.mark.parametrize("copied", range(8))
def test_a_copy_that_was_cut_off_is_no_table_and_is_made_again(lakehouse, monkeypatch, copied):
    for number in (3, 4):
        write(lakehouse, "rest_deliveries", {"run": number})
    files, real = [], migration._root

    class Cut:
        """A file system that ends the process before a file."""

        def __init__(self, system):
            self.system = system

        def __getattr__(self, name):
            return getattr(self.system, name)

        def copy_file(self, old, new):
            if len(files) == copied:
                raise KeyboardInterrupt
            files.append(new)
            self.system.copy_file(old, new)

    monkeypatch.setattr(migration, "_root", lambda lakehouse: Cut(real(lakehouse)))
    if copied < 5:  # two data files and three entries
        with pytest.raises(KeyboardInterrupt):
            migrate(lakehouse)
        with pytest.raises((ConfigurationError, DataError)):
            lakehouse.table("export_outcomes").open()
    monkeypatch.undo()
    migrate(lakehouse)
    assert lakehouse.table("export_outcomes").open().to_pyarrow_table().num_rows == 6
    assert (lakehouse.names(), migrate(lakehouse)) == (["export_outcomes"], [])


def test_a_removal_that_was_cut_off_goes_on(lakehouse):
    write(lakehouse, "suppressed_entities", {"commits": 3})
    [change] = changes(lakehouse)
    migration._mark(change.table)
    migration._copy(lakehouse, change.table, change.becomes)
    for path in migration._files(lakehouse, change.table)[:-1]:
        Path(change.table.uri, path).unlink()
    assert migrate(lakehouse) == [("suppressed_entities", "erased_people")]
    assert lakehouse.table("erased_people").open().to_pyarrow_table().num_rows == 3
    assert lakehouse.names() == ["erased_people"]


def test_another_table_of_the_new_name_is_left_as_it_is(lakehouse):
    write(lakehouse, "rest_outbox", {})
    write(lakehouse, "export_calls", {})
    with pytest.raises(ConfigurationError, match="has a table rest_outbox and another table export_calls"):
        migrate(lakehouse)


def test_the_list_of_an_unfinished_full_refresh_gets_its_new_name(lakehouse):
    write(lakehouse, QUARANTINE, {"slices": 1})
    folder = Path(lakehouse.root, QUARANTINE)
    (folder / "_reset-3.json").write_text("{}")
    [change] = changes(lakehouse)
    assert change.lists == ("_reset-3.json",)
    apply(lakehouse, change)
    assert [file.name for file in folder.glob("_*.json")] == ["_full_refresh-3.json"]


@pytest.mark.parametrize("times", [1, 100])
def test_a_run_that_commits_at_the_same_time_has_its_values_taken_or_all_attempts(lakehouse, monkeypatch, times):
    write(lakehouse, BRONZE, {"generation": 1})
    [change] = changes(lakehouse)
    real, commits = migration._new_ids, []

    def overtaken(table, handle):
        ids = real(table, handle)
        if len(commits) < times:
            commits.append(write(lakehouse, BRONZE, {"generation": 2}))
        return ids

    monkeypatch.setattr(migration, "_new_ids", overtaken)
    if times == 1:
        apply(lakehouse, change)
        assert ids_of(lakehouse, BRONZE)["incarnation"] == 2
    else:
        with pytest.raises(ConflictError, match="stop all runs"):
            apply(lakehouse, change)


def test_a_restore_is_still_found_afterwards(lakehouse):
    write(lakehouse, BRONZE, {"batch": 1})
    write(lakehouse, BRONZE, {"batch": 2}).restore(0)
    migrate(lakehouse)
    assert restored_lately(lakehouse.table(BRONZE))


def test_a_table_restored_to_a_version_of_before_keeps_the_values_that_it_has_now(lakehouse):
    write(lakehouse, BRONZE, {"generation": 1})
    migrate(lakehouse)
    properties = CommitProperties(app_transactions=[Transaction("incarnation", 8)])
    table = lakehouse.table(BRONZE)
    table.open().alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 7200 seconds"}, commit_properties=properties
    )
    table.open_of_any_format().alter.set_column_metadata("n", {KEY: "1"})
    migrate(lakehouse)
    assert (format_of(table.open()), table.open().transaction_version("incarnation")) == (3, 8)


def test_a_lakehouse_that_is_only_read_is_not_migrated(tmp_path):
    lakehouse = Lakehouse(str(tmp_path), read_only=True)
    write(lakehouse, BRONZE, {"generation": 1})
    with pytest.raises(ReadOnlyError):
        migrate(lakehouse)
