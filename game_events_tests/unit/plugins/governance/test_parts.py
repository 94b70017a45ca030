"""The parts of an erasure by themselves: ids of any type, bytes that nobody can decode, older logs, keys. No service."""

import json
import os
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedWriter, file_system, staged
from game_events.lakehouse.tables import EXPORT_FAILED_CALLS, Lakehouse, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.governance import commits as erasure_files
from game_events.plugins.governance.commits import Erasure, ErasureState, find_erased_rows, remove_old_files, without
from game_events.plugins.governance.erased_people import add_people, add_records, finish_people, read_erased_people
from game_events.plugins.governance.settings import erasure_key
from game_events.plugins.governance.workers import (
    RECORDS,
    ErasedPeople,
    ErasedPeopleFilter,
    EraseTask,
    PeopleToErase,
    RecoverTask,
    id_hash,
)
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put
from game_events_tests.support.worker_jobs import run
from game_events_tests.support.worlds.undecodable_rows import WHOM
from game_events_tests.support.worlds.waves import PowerCut

KEY = b"a key of the tests, long enough"
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def scanned(task, table, path):
    """What a worker finds in a file, as the driver gets it."""
    (found,) = run(task, pa.table({"table": [table], "path": [path]}).to_batches()).files
    return found


def suppressor(*ids):
    return ErasedPeopleFilter(ErasedPeople("gamer_id", KEY, frozenset(id_hash(KEY, i.encode()) for i in ids)))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["7", "8", None, "7"], pa.string()),
        (["7", "8", None, "7"], pa.large_string()),
        ([b"7", b"8", None, b"7"], pa.binary()),
        ([7, 8, None, 7], pa.int64()),
        ([7, 8, None, 7], pa.uint32()),
        ([Decimal(7), Decimal(8), None, Decimal(7)], pa.decimal128(20, 0)),
    ],
)
def test_an_id_is_recognised_whatever_its_type(values, kind):
    rows = pa.table({"gamer_id": pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])})
    assert suppressor("7").decoded(rows).tolist() == [True, False, False, True]
    assert PeopleToErase("gamer_id", "game_name", frozenset({"7"})).mask("silver_x_events", rows).tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_an_id_that_came_with_another_type_is_recognised_and_other_columns_are_not():
    rows = pa.table({"gamer_id": ["1", "7"], "gamer_id__bigint": pa.array([7, None], pa.int64()), "friend": ["7", "7"]})
    assert suppressor("7").decoded(rows).tolist() == [True, True]
    assert suppressor("1").decoded(rows).tolist() == [True, False]
    assert suppressor("9").decoded(rows.slice(0, 0)).tolist() == []


def test_an_undecodable_record_of_theirs_is_known_by_its_key_or_by_what_an_erasure_has_noted(pipeline):
    hashes = {id_hash(KEY, WHOM.encode()).hex(), "ff"}
    add_people(pipeline.lakehouse, KEY, hashes, "run")
    add_records(pipeline.lakehouse, hashes, [])
    for noted in ({("topic", 0, 7)}, {("topic", 1, 7), ("topic", 0, 7)}, {("older", 0, 8)}):
        add_records(pipeline.lakehouse, hashes, noted)
    finish_people(pipeline.lakehouse, hashes)
    add_people(pipeline.lakehouse, KEY, {"aa"}, "run")
    listed = read_erased_people(pipeline.lakehouse)
    assert listed.records == {("topic", 0, 7), ("topic", 1, 7), ("older", 0, 8)}
    known = ErasedPeopleFilter(ErasedPeople("gamer_id", KEY, frozenset(map(bytes.fromhex, listed.entries)), listed.records))
    batch = pa.record_batch(
        {
            "key": pa.array([None, None, None, None, WHOM.encode()], pa.binary()),
            "headers": pa.nulls(5, HEADERS),
            "partition": pa.array([0, 0, 1, 2, 2], pa.int32()),
            "offset": pa.array([7, 8, 7, 7, 1], pa.int64()),
        }
    )

    def found(*topic_ids):
        return known.undecodable(batch, pa.array(topic_ids), np.arange(5)).tolist()

    assert found(*["topic"] * 5) == [True, False, True, False, True]
    assert found(*["older"] * 5) == [False, True, False, False, True]
    assert found("older", "older", "older", "topic", "topic") == [False, True, False, False, True]
    some = known.undecodable(batch, pa.array(["topic"] * 5), np.array([4, 1]))
    assert some.tolist() == [False, False, False, False, True]


def test_what_a_receiver_has_answered_of_them_goes_from_the_failed_chunks_of_others(tmp_path):
    """The answer to a call stands on each of its rows, and may quote any of them."""
    failed = Lakehouse(str(tmp_path)).table(EXPORT_FAILED_CALLS)
    rows = pa.table(
        {
            "key": ["call 1", "call 1", "call 2", "call 2", "call 3"],
            "gamer_id": [WHOM, "ann", "bob", "eve", "ann"],
            "json": ["{}"] * 5,
            "answer": ["row 0 is bad"] * 2 + [json.dumps({"error": f"no {WHOM} here"})] * 2 + ["busy"],
        }
    )
    writer = StagedWriter(failed, rows.schema, group_rows=1)
    writer.write(rows)
    (file,) = writer.close()
    task = EraseTask({failed.key: failed}, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})), rewrite=True)
    found = scanned(task, failed.key, file.path)
    assert (found.rows, found.answers, found.matches) == (1, 3, True)
    (left,) = found.files
    kept = pq.read_table(Path(failed.uri) / left.path)
    assert kept.column("gamer_id").to_pylist() == ["ann", "bob", "eve", "ann"]
    assert kept.column("answer").to_pylist() == [None, None, None, "busy"]
    again = task.scan(failed.key, left.path)
    assert not again.matches


def test_rows_of_bronze_that_are_not_decoded_tell_whose_they_are_by_key_and_bytes(tmp_path):
    raw = WHOM.encode()
    columns = {
        "_kafka_topic_id": ["t"] * 5,
        "_kafka_partition": pa.array([0] * 5, pa.int32()),
        "_kafka_offset": range(5),
        "_kafka_key": pa.array([None, raw, None, b"x", raw], pa.binary()),
        "_raw_value": pa.array([b"\x12" + bytes([len(raw)]) + raw, b"?", b"nobody's", None, b"decoded"], pa.binary()),
        # The last one is decoded, and somebody else's: what its key says is no more than before.
        "gamer_id": [None, None, None, None, "ann"],
        "game_name": [None, None, None, None, "uno"],
    }
    bronze = Lakehouse(str(tmp_path)).table("bronze_events")
    rows = pa.table(columns)
    (file,) = staged(bronze, rows)
    task = EraseTask({bronze.key: bronze}, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})), rewrite=True)
    found = scanned(task, bronze.key, file.path)
    assert (found.rows, found.unsearchable) == (2, 2)
    assert found.by_bytes.column("_kafka_offset").to_pylist() == [0, 1]
    (left,) = found.files
    assert pq.read_table(Path(bronze.uri) / left.path).column("_kafka_offset").to_pylist() == [2, 3, 4]


def test_what_stays_of_a_file_that_another_spark_has_written_has_the_tables_types(pipeline):
    table = pipeline.lakehouse.silver("uno")
    # The last one is in the year 9999.
    times = pa.array([0, 1_700_000_000_123_456, 253_402_300_799_999_999], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"gamer_id": [WHOM, "ann", "bob"], "event_timestamp": times, "_batch": pa.array([1] * 3, pa.int64())})
    commit(Commit(table, rows.schema, [], {}, {"mine": 1}, None))
    theirs = Path(table.uri) / "part-00000-spark.c000.snappy.parquet"
    # Spark's default, spark.sql.parquet.outputTimestampType
    pq.write_table(rows, theirs, use_deprecated_int96_timestamps=True, store_schema=False)
    task = EraseTask({table.key: table}, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})), rewrite=True)
    (left,) = task.scan(table.key, theirs.name).files
    held = pq.read_table(Path(table.uri) / left.path)
    assert held.schema.field("event_timestamp").type == times.type
    assert held.to_pylist() == rows.slice(1).to_pylist()


@pytest.mark.parametrize(
    ("key", "header"),
    [(WHOM.encode(), None), (b'"' + WHOM.encode() + b'"', None), (None, b"\x00\x00\x00\x00\x07\x1e" + WHOM.encode())],
)
def test_an_id_that_only_keys_or_headers_of_records_have_that_are_not_decoded_is_found_again_by_its_hash(tmp_path, key, header):
    bronze = Lakehouse(str(tmp_path)).table("bronze_events")
    rows = pa.table(
        {
            "_kafka_key": pa.array([key, b"ann"]),
            "_kafka_headers": pa.array([[{"key": "by", "value": header}], None], HEADERS),
            "gamer_id": pa.array([None, None], pa.string()),
        }
    )
    (file,) = staged(bronze, rows)
    gone = ErasedPeople("gamer_id", KEY, frozenset({id_hash(KEY, WHOM.encode())}))
    assert RecoverTask({bronze.key: bronze}, gone).find(bronze.key, file.path) == {WHOM}


def test_a_record_of_another_topic_at_the_same_place_of_the_same_batch_is_not_theirs():
    place = {"_kafka_partition": [0, 0], "_kafka_offset": [4, 4], "_batch": [1, 1], "game": ["x", "x"]}
    records = pa.table({"_kafka_topic": ["a", "b"], "_kafka_topic_id": ["one", "two"]} | place).cast(RECORDS)
    wanted = PeopleToErase("gamer_id", "game_name", frozenset({WHOM}), records.slice(0, 1))
    # Without the column that names them, as a transformation may have left it.
    silver = records.drop_columns(["_kafka_topic_id", "game"])
    assert wanted.mask("silver_x_events", silver).tolist() == [True, False]


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path / "lakehouse", erasure_key=KEY.decode())


def make(table, gamers, rows=1):
    schema = pa.schema([("gamer_id", pa.string()), ("n", pa.int64())])
    return put(table, pa.table({"gamer_id": gamers * rows, "n": range(len(gamers) * rows)}, schema=schema), {"mine": 5})


def erase(table, *ids):
    handle = table.open()
    task = EraseTask({table.key: table}, PeopleToErase("gamer_id", "game_name", frozenset(ids)), rewrite=True)
    hits = [found for path in paths(handle) if (found := task.scan(table.key, path)).rows]
    commit(without(table, handle, hits, "run"))
    return hits


def logs_with(table, text):
    return [f.name for f in (Path(table.uri) / "_delta_log").iterdir() if text.encode() in f.read_bytes()]


def test_only_files_with_rows_of_theirs_are_written_anew_and_progress_stays(pipeline):
    table = pipeline.lakehouse.table("gold_x_old")
    make(table, ["ann", WHOM], rows=200_000)  # several row groups
    make(table, ["bob"])
    make(table, [WHOM])
    before = set(paths(table.open()))
    assert [found.rows for found in sorted(erase(table, WHOM), key=lambda f: f.rows)] == [1, 200_000]
    handle = table.open()
    assert len(before & set(paths(handle))) == 1
    assert handle.transaction_version("mine") == 5
    assert sum(file["num_records"] for file in pa.table(handle.get_add_actions()).to_pylist()) == 200_001
    assert erase(table, WHOM) == []


def test_old_files_and_log_entries_that_name_somebody_are_removed_and_no_others(pipeline):
    older = Lakehouse(pipeline.lakehouse.root).table("gold_x_old")  # of a version that wrote bounds of every column
    make(older, ["ann", WHOM])
    make(older, ["bob"])
    erase(older, WHOM)
    erase(older, "bob")
    table = pipeline.lakehouse.table("gold_y_new")
    make(table, ["ann", WHOM])
    erase(table, WHOM)
    assert logs_with(older, WHOM)
    assert not logs_with(table, WHOM)
    (young,) = staged(table, pa.table({"gamer_id": [WHOM]}))

    account = Erasure()
    wanted = PeopleToErase("gamer_id", "game_name", frozenset({WHOM}))
    remove_old_files(pipeline, account, wanted)
    assert account.removed_files == {"gold_x_old": 1, "gold_y_new": 1}
    assert account.kept_files == {"gold_y_new": 1}, "a run may be about to commit it"
    assert account.cleaned_logs == ["gold_x_old"]
    assert not logs_with(older, WHOM)
    assert DeltaTable(older.uri).transaction_version("mine") == 5
    held = [
        row
        for path in paths(older.open())
        for row in EraseTask({older.name: older}, wanted, False).scan(older.name, path).files
    ]
    assert held == []
    old = time.time() - 7_200
    os.utime(Path(table.uri) / young.path, (old, old))
    remove_old_files(pipeline, account, wanted)
    assert not (Path(table.uri) / young.path).exists()


def test_rows_of_theirs_that_another_engine_has_changed_go_from_the_files_of_changes_too(pipeline):
    table = replace(pipeline.lakehouse.table("gold_x_old"), features=("changeDataFeed",))
    make(table, ["ann", WHOM])
    DeltaTable(table.uri).update(updates={"n": "7"}, predicate=f"gamer_id = '{WHOM}'")
    (changes,) = Path(table.uri, "_change_data").iterdir()
    assert WHOM in pq.read_table(changes)["gamer_id"].to_pylist()
    erase(table, WHOM)
    account = Erasure()
    remove_old_files(pipeline, account, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})))
    assert not changes.exists()
    assert not account.kept_files
    assert read_arrow(table, table.open())["gamer_id"].to_pylist() == ["ann"]


def test_a_power_cut_at_any_deletion_leaves_tables_that_can_be_read(pipeline, monkeypatch):
    tables = [pipeline.lakehouse.table(f"gold_{name}_old") for name in "xy"]
    for table in tables:
        make(table, ["ann", WHOM])
    wanted = PeopleToErase("gamer_id", "game_name", frozenset({WHOM}))
    root, on_disk, deleted = Path(pipeline.lakehouse.root), set[Path](), []
    monkeypatch.setattr(os, "sync", lambda: on_disk.update(p for p in root.rglob("*") if p.is_file()))
    for table in tables:
        erase(table, WHOM)

    def cut(name, _):
        if name == "file_deleted":
            deleted.append(name)
            raise PowerCut

    for number in range(len(tables)):
        with at_failpoints(cut), pytest.raises(PowerCut):
            remove_old_files(pipeline, Erasure(), wanted)
        for path in root.rglob("*"):
            if path.is_file() and path not in on_disk:
                os.truncate(path, 0)
        assert len(deleted) == number + 1
        for table in tables:
            assert read_arrow(table, table.open())["gamer_id"].to_pylist() == ["ann"]
    remove_old_files(pipeline, Erasure(), wanted)


def test_the_account_of_removed_files_has_the_tables_names(tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), names={"prefix": "dev_"})
    prefixed = Pipeline(settings, lambda: pytest.fail("a handful of files needs no Spark job"))
    table = prefixed.lakehouse.table("gold_x_player_agg")
    make(table, ["ann", WHOM])
    erase(table, WHOM)
    account = Erasure()
    remove_old_files(prefixed, account, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})))
    assert account.removed_files == {"dev_gold_x_player_agg": 1}


def test_old_files_that_are_half_written_or_deleted_meanwhile_do_not_end_the_search(pipeline):
    table = pipeline.lakehouse.table("gold_x_old")
    make(table, [WHOM])
    make(table, ["bob"])
    erase(table, WHOM)
    folder, wanted = Path(table.uri), PeopleToErase("gamer_id", "game_name", frozenset({WHOM}))
    for name in ("half", "killed"):
        (folder / f"part-{name}.parquet").write_bytes((folder / paths(table.open())[0]).read_bytes()[:-40])
    os.utime(folder / "part-killed.parquet", (0, 0))
    account = Erasure()
    remove_old_files(pipeline, account, wanted)
    assert (account.removed_files, account.kept_files) == ({table.name: 2}, {table.name: 1})
    assert (folder / "part-half.parquet").exists(), "a run may be writing it"
    assert not erasure_files._names_one(file_system(table)[0], f"{folder}/_delta_log/{9:020}.json", wanted)
    gone = EraseTask({table.name: table}, wanted, rewrite=False, old=True).scan(table.name, "part-deleted-meanwhile.parquet")
    assert (gone.matches, gone.unreadable) == (False, False)
    with pytest.raises(FileNotFoundError):  # of today's files none may be missing
        EraseTask({table.name: table}, wanted, rewrite=False).scan(table.name, "part-missing.parquet")


def test_bronzes_old_files_go_last_as_they_lead_to_the_others(pipeline):
    tables = [pipeline.lakehouse.table(name) for name in ("bronze_events", "silver_chess_events")]
    for table in tables:
        make(table, ["ann", WHOM])
        erase(table, WHOM)
    deleted = []
    with at_failpoints(lambda point, table: deleted.append((point, table))):
        remove_old_files(pipeline, Erasure(), PeopleToErase("gamer_id", "game_name", frozenset({WHOM})))
    of_files = [table for point, table in deleted if point == "file_deleted"]
    assert of_files == ["silver_chess_events", "bronze_events"]


def test_only_rows_that_a_commit_took_out_are_gone_and_not_those_that_a_killed_run_left_behind(pipeline):
    bronze, account = pipeline.bronze, Erasure()
    make(bronze, ["ann", WHOM])
    erase(bronze, WHOM)
    staged(bronze, pa.table({"gamer_id": [WHOM], "_batch": [7]}))
    (Path(bronze.uri) / "part-killed.parquet").write_bytes(b"PAR1")
    work = ErasureState(pipeline, RunReport(), account, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})))
    find_erased_rows(work, bronze.open())
    assert work.people.records.column("_batch").to_pylist() == [None]


def test_the_list_holds_hashes_alone_and_one_key(pipeline):
    lakehouse = pipeline.lakehouse
    mine = id_hash(KEY, WHOM.encode()).hex()
    assert add_people(lakehouse, KEY, [mine], "run").entries == {}
    assert read_erased_people(lakehouse).unfinished == {mine}
    finish_people(lakehouse, [mine])
    add_people(lakehouse, KEY, ["another"], "run")
    listed = read_erased_people(lakehouse)
    assert (set(listed.entries), listed.unfinished) == ({mine, "another"}, {"another"})
    with pytest.raises(ConfigurationError, match="another key"):
        add_people(lakehouse, KEY[::-1], ["x"], "run")
    with pytest.raises(DataError, match=r"not finished.*repeat.*exactly these"):
        add_people(lakehouse, KEY, [mine, "another"], "run")
    assert add_people(lakehouse, KEY, ["another"], "again").unfinished == {"another"}
    assert mine != id_hash(KEY[::-1], WHOM.encode()).hex()


def test_the_key_may_stand_in_a_file_and_must_be_long(tmp_path):
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    assert erasure_key(load_settings(erasure_key_file=file)) == b"0123456789abcdef"
    assert erasure_key(load_settings(erasure_key="")) is None
    with pytest.raises(ConfigurationError, match="both set"):
        erasure_key(load_settings(erasure_key_file=file, erasure_key="0123456789abcdef"))
    file.write_text("short-secret")
    for wrong in (file, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_ERASURE_KEY_FILE") as refused:
            erasure_key(load_settings(erasure_key_file=wrong))
        assert "short-secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="at least 16 characters") as refused:
        load_settings(erasure_key="short-secret")
    assert "short-secret" not in str(refused.value)


def test_neither_the_key_nor_an_id_is_in_what_prints_of_them():
    shown = repr(ErasedPeople("gamer_id", KEY, frozenset())) + repr(PeopleToErase("gamer_id", "game_name", frozenset({WHOM})))
    shown += repr(EraseTask({}, PeopleToErase("gamer_id", "game_name", frozenset({WHOM})), True))
    assert KEY.decode() not in shown
    assert WHOM not in shown
