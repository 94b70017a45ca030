"""Entries of the log that are written without delta-rs: other readers take them for its own; delta-rs writes all the others."""

import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import entries
from game_events.lakehouse.commits import log
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.log import write_version
from game_events.lakehouse.data.staging import StagedWriter, staged
from game_events.lakehouse.entries import UNFINISHED
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.table_properties import CHECKPOINT_COMMITS, KEPT_CHECKPOINT_COMMITS
from game_events.lakehouse.tables import UNIFIED, Lakehouse
from game_events_tests.support.faults import at_commit, at_creation
from game_events_tests.support.tables import (
    SCHEMA,
    assert_nothing_left_over,
    committed_files,
    data_files,
    numbers,
    plan,
    staged_numbers,
    thin_out,
    txn,
)


def entry(table, version):
    """Actions of a version; without those of their keys that differ for each commit."""
    lines = Path(table.uri, "_delta_log", f"{version:020}.json").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def in_log(table):
    """Names of the files in the folder of the log."""
    return sorted(file.name for file in Path(table.uri, "_delta_log").iterdir())


def is_own(table, version):
    """Whether the entry was written without delta-rs."""
    return entry(table, version)[0]["commitInfo"]["engineInfo"] == "game_events"


@contextmanager
def by_delta_rs():
    """Within the block delta-rs writes all entries."""

    def write(usual, table, *given, **how):
        return usual(replace(table, uri=f"file://{table.uri}"), *given, **how)

    with at_commit(write), at_creation(write):
        yield


@pytest.mark.parametrize("how", [{}, {"replace": True}, {"same_rows": True}], ids=str)
def test_an_entry_says_what_delta_rs_says(tmp_path, how):
    """But for values of single commits, the name of the engine, and keys of `add` without a value."""

    def made(folder):
        table = Lakehouse(str(tmp_path / folder)).table("t")
        commit(plan(table, [0], None, 1))
        rewritten = frozenset(data_files(table)) if "same_rows" in how else frozenset()
        commit(plan(table, [1, None, 7], 1, 2, info={"note": 'ä "quoted"'}, rewritten=rewritten, **how))
        return table

    with by_delta_rs():
        theirs = made("theirs")
    ours = made("ours")
    assert (is_own(theirs, 1), is_own(ours, 1)) == (False, True)

    for version in (0, 1):
        assert comparable(ours, version) == comparable(theirs, version)


def comparable(table, version):
    """Kind of action -> its values that are not of a single table or commit."""
    drop = {"timestamp", "modificationTime", "deletionTimestamp", "engineInfo", "clientVersion", "game_events_commit"}
    drop |= {"id", "createdTime", "operationParameters" if version == 0 else ""}
    before = {action["add"]["path"] for action in entry(table, 0) if "add" in action} if version else set()
    found = {}
    for action in entry(table, version):
        ((kind, values),) = action.items()
        values = {key: value for key, value in values.items() if value is not None and key not in drop}
        if "path" in values:
            values["path"] = "old" if values["path"] in before else "new"
        if "schemaString" in values:
            values["schemaString"] = json.loads(values["schemaString"])
        found.setdefault(kind, []).append(values)
    return found


def test_a_file_of_a_partition_says_so(tmp_path):
    table = Lakehouse(str(tmp_path)).table(UNIFIED)
    schema = pa.schema([("n", pa.int64()), ("game", pa.string())])

    def files(n):
        Path(table.uri, "game=uno").mkdir(parents=True, exist_ok=True)
        writer = StagedWriter(table, schema.remove(1), folder="game=uno/")
        writer.write(pa.table({"n": [n]}))
        return writer.close()

    first = plan(table, [], None, 1, schema=schema, files=files(1), partition_by=("game",))
    handle = commit(first).handle
    commit(
        replace(
            first,
            files=files(2),
            expect_transactions={"txn": 1},
            set_transactions={"txn": 2},
            table_id=str(handle.metadata().id),
        )
    )
    assert is_own(table, 1)
    assert sorted(pa.table(DeltaTable(table.uri).get_add_actions(flatten=True))["partition.game"].to_pylist()) == ["uno", "uno"]


@pytest.mark.parametrize("expired", [False, True])
def test_a_table_that_is_there_is_not_made_again_even_if_its_first_entries_have_expired(table, expired):
    for n in range(1, 3):
        commit(plan(table, [n], n, n + 1))
    if expired:
        table.open().create_checkpoint()
        for version in (0, 1):
            Path(table.uri, "_delta_log", f"{version:020}.json").unlink()
    before = in_log(table)
    with pytest.raises(CommitFailedError, match="already exists"):
        log.make_table(table, DeltaSchema.from_arrow(SCHEMA), log.Changes(), description=None, partition_by=(), replaces=False)
    assert in_log(table) == before


@pytest.mark.parametrize(
    "name", [".DS_Store", ".nfs0001", f".{0:020}.json.crc", f".{0:020}.json.5a1c.tmp", "_commits/x", "tmp"]
)
def test_a_folder_of_a_log_without_one_is_no_table(tmp_path, name):
    """What file systems, and other writers that crashed or were deleted, leave there."""
    table = Lakehouse(str(tmp_path)).table("t")
    file = Path(table.uri, "_delta_log", name)
    file.parent.mkdir(parents=True)
    file.touch()
    commit(plan(table, [1], None, 1))
    assert numbers(table) == [1]


def test_no_table_is_made_if_its_folder_was_deleted_with_the_files(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")

    def deleted(usual, *given, **how):
        shutil.rmtree(table.uri)
        return usual(*given, **how)

    with at_creation(deleted), pytest.raises(GameEventsError):
        commit(plan(table, [1], None, 1))
    assert table.open() is None


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_table_of_columns_that_take_features_is_made_by_delta_rs(tmp_path, unit, nested, zone):
    kind = pa.timestamp(unit, zone)
    kind = pa.list_(pa.struct([("at", kind)])) if nested else kind
    table = Lakehouse(str(tmp_path)).table("t")
    rows = pa.table({"at": pa.nulls(1, kind), "price": pa.nulls(1, pa.decimal128(9, 2))})
    handle = commit(plan(table, [], None, 1, schema=rows.schema, files=staged(table, rows))).handle
    assert is_own(table, 0) is ((unit, zone) == ("us", "UTC"))
    assert str(DeltaTable(table.uri).schema()) == str(handle.schema())


def test_of_two_that_make_a_table_one_is_refused(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")
    calls = []

    def overtaken(usual, *given, **how):
        calls.append(how)
        if len(calls) == 1:
            commit(plan(table, [1], None, 1))
        return usual(*given, **how)

    with at_creation(overtaken), pytest.raises(ConflictError):
        commit(plan(table, [2], None, 1))
    assert numbers(table) == [1]
    assert_nothing_left_over(table)


def test_a_version_that_another_commit_has_taken_is_refused_and_nothing_is_left(table):
    handle = table.open()
    commit(plan(table, [1], 1, 2))
    before = in_log(table)
    with pytest.raises(CommitFailedError, match=r"version 1 of .* already exists"):
        write_version(table, handle, log.Changes(set_transactions={"txn": 9}))
    assert in_log(table) == before
    assert txn(table) == 2


def test_a_table_that_is_made_again_while_an_entry_is_written_gets_no_gap(table, monkeypatch):
    """Deleted before the entry's file is written, or between that and the link."""

    def made_again():
        shutil.rmtree(table.uri)
        commit(plan(table, [100], None, 1))

    def late(write, *given):
        made_again()
        return write(*given)

    for n in range(1, 3):
        commit(plan(table, [n], n, n + 1))
    with at_commit(late), pytest.raises(ConflictError):
        commit(plan(table, [3], 3, 4, from_table=table.open()))
    assert (in_log(table), numbers(table)) == ([f"{0:020}.json"], [100])

    for n in range(1, 3):
        commit(plan(table, [n], n, n + 1))
    link, handle = os.link, table.open()
    with monkeypatch.context() as patch:
        patch.setattr(entries.os, "link", lambda *names: (patch.undo(), made_again(), link(*names)))
        with pytest.raises(FileNotFoundError):
            write_version(table, handle, log.Changes(set_transactions={"txn": 9}))
    assert (in_log(table), numbers(table)) == ([f"{0:020}.json"], [100])


@pytest.mark.parametrize("call", ["link", "fstat"])
def test_a_disk_that_fails_leaves_neither_an_entry_nor_a_file(table, monkeypatch, call):
    def fails(*_):
        raise OSError(28, "No space left on device")

    before = in_log(table)
    late = plan(table, [1], 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(entries.os, call, fails)
        with pytest.raises(GameEventsError, match=r"no space is left.*nothing else is visible"):
            commit(late)
    assert in_log(table) == before
    assert_nothing_left_over(table)


def test_an_entry_that_a_crash_left_unfinished_is_invisible_and_goes_with_expired_ones(table):
    left = Path(table.uri, "_delta_log", f"{UNFINISHED}0.json.tmp")
    left.write_text('{"commitInfo":', "utf-8")
    commit(plan(table, [1], 1, 2, from_table=table.open()))
    assert (numbers(table), table.open().version()) == ([0, 1], 1)
    thin_out(table)
    assert left.exists(), "another process may be writing it"
    os.utime(left, (0, 0))
    thin_out(table)
    assert not left.exists()
    assert numbers(table) == [0, 1]


@pytest.mark.parametrize(("kept", "every"), [(False, CHECKPOINT_COMMITS), (True, KEPT_CHECKPOINT_COMMITS)])
def test_checkpoints_are_made_more_often_for_those_that_open_the_table_for_each_commit(table, kept, every):
    """And what is in them needs no older entry."""
    handle = table.open()
    for n in range(1, 2 * every + 1):
        handle = commit(plan(table, [n], n, n + 1, from_table=handle if kept else None)).handle
    names = in_log(table)
    due = [every - 1, 2 * every - 1]
    assert sorted(name for name in names if "checkpoint.parquet" in name) == [f"{v:020}.checkpoint.parquet" for v in due]
    for version in range(due[-1]):
        Path(table.uri, "_delta_log", f"{version:020}.json").unlink()
    assert (numbers(table), txn(table)) == (list(range(2 * every + 1)), 2 * every + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
        lambda table: table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
        lambda table: table.alter.set_table_properties({"delta.targetFileSize": "1mb"}),
    ],
    ids=["append only", "change data", "an unknown property"],
)
def test_a_table_that_asks_more_of_its_writers_is_left_to_delta_rs(table, change):
    change(DeltaTable(table.uri))
    before = table.open().version()
    commit(plan(table, [1], 1, 2))
    assert not is_own(table, before + 1)
    assert numbers(table) == [0, 1]


def test_the_change_feed_of_a_table_has_replaced_rows_and_no_compacted_ones(tmp_path):
    """Without files of changes readers derive them from the files that are added and removed."""
    table = Lakehouse(str(tmp_path)).table("t")
    commit(plan(table, [0], None, 1))
    DeltaTable(table.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    begin = table.open().version()
    commit(plan(table, [1], 1, 2))
    join_files(table, table.open(), sorted(committed_files(table)))
    commit(plan(table, [2], 2, 3, replace=True))
    commit(plan(table, [], 3, 4, files=staged_numbers(table, [3]), rewritten=frozenset(committed_files(table))))
    read = pa.table(DeltaTable(table.uri).load_cdf(starting_version=begin).read_all())
    changes = zip(*(read.column(name).to_pylist() for name in ("_commit_version", "_change_type", "n")), strict=True)
    assert sorted(changes) == [
        (begin + 1, "insert", 1),
        (begin + 3, "delete", 0),
        (begin + 3, "delete", 1),
        (begin + 3, "insert", 2),
        (begin + 4, "delete", 2),
        (begin + 4, "insert", 3),
    ]


@pytest.mark.parametrize("how", [{"replace": True}, {"same_rows": True}], ids=str)
def test_a_removal_says_how_large_the_file_was_and_in_which_partition(tmp_path, how):
    table = Lakehouse(str(tmp_path)).table("t")
    commit(plan(table, [0], None, 1))
    (file,) = committed_files(table)
    size = Path(table.uri, file).stat().st_size
    commit(plan(table, [0], 1, 2, rewritten=frozenset([file] if "same_rows" in how else []), **how))
    (removed,) = [action["remove"] for action in entry(table, 1) if "remove" in action]
    assert removed.items() >= {"path": file, "extendedFileMetadata": True, "partitionValues": {}, "size": size}.items()
    assert is_own(table, 1)


def test_a_table_with_a_columns_metadata_of_delta_is_left_to_delta_rs(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")
    former = {"delta.something": "1"}
    fields = [Field(f.name, Field.from_arrow(f).type, metadata=former if f.name == "n" else {}) for f in SCHEMA]
    DeltaTable.create(table.uri, DeltaSchema(fields))
    commit(plan(table, [1], None, 1))
    assert not is_own(table, table.open().version())


def test_a_table_with_times_without_a_zone_is_written_to(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")
    rows = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    for number in range(2):
        planned = plan(table, [], number or None, number + 1, schema=rows.schema, files=staged(table, rows))
        commit(planned)
    assert (is_own(table, 0), is_own(table, 1)) == (False, True), "such a column takes a feature of the protocol"


def test_new_columns_and_names_that_addresses_encode_are_left_to_delta_rs(table):
    wider = SCHEMA.append(pa.field("more", pa.string()))
    rows = pa.table({"n": [1], "s": ["a"], "more": ["b"]}, wider)
    commit(plan(table, [1], 1, 2, schema=wider, files=staged(table, rows)))
    assert entry(table, 1)[0]["commitInfo"]["operation"] == "ADD COLUMN"
    assert is_own(table, 2)
    (file,) = plan(table, [2], 2, 3).files
    odd = replace(file, path="part 1%.parquet")
    Path(table.uri, file.path).rename(Path(table.uri, odd.path))
    handle = commit(plan(table, [2], 2, 3, files=[odd])).handle
    assert not is_own(table, 3)
    assert numbers(table) == [0, 1, 2]
    assert sorted(path for path in handle.file_uris() if "%" in path) == sorted(
        path for path in DeltaTable(table.uri).file_uris() if "%" in path
    )


@pytest.mark.parametrize("text", ["ä \u2028 \U0001f600", '"\\', "\ttab\nline"])
def test_texts_of_any_kind_come_back(table, text):
    commit(plan(table, [1], 1, 2, app="txn", info={"note": text}))
    assert is_own(table, 1)
    assert DeltaTable(table.uri).history(1)[0]["note"] == text


def test_a_text_that_is_none_in_utf_8_is_refused_as_no_reader_could_read_the_log(table):
    """Python has such texts of broken file names and arguments; JSON has an escape for them that only Python reads."""
    before = in_log(table)
    with pytest.raises(UnicodeEncodeError):
        commit(plan(table, [1], 1, 2, info={"note": "broken \udc80"}))
    assert in_log(table) == before
    assert txn(table) == 1
    other = replace(table, uri=f"{table.uri}2", name="t2")
    with pytest.raises(UnicodeEncodeError):
        commit(plan(other, [1], None, 1, description="broken \udc80"))
    assert not Path(other.uri, "_delta_log").exists()


@pytest.mark.parametrize("number", [True, 2**63, -(2**63) - 1], ids=repr)
def test_a_number_that_the_log_has_no_form_for_leaves_the_table_readable(table, number):
    with suppress(OverflowError):
        commit(plan(table, [1], 1, number))
    assert txn(table) == 1
