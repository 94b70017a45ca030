"""One worker's pass over Kafka records: every row in bronze's files or in quarantine's, with its coordinates."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding import projection
from game_events.decoding.decoder import MAX_UNKNOWN_PATHS, BatchDecoder, DecodePlan
from game_events.decoding.frame import Reason
from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS, bronze_schema
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse
from game_events.plugins.governance.workers import ErasedPeople, id_hash
from game_events.sources.source import RECORD_SCHEMA
from game_events.workers.decode import BronzeTask, StoredTask
from game_events.workers.results import StagedRows
from game_events_tests.support.decoding.helpers import compiled, frame, plan_for, python_class
from game_events_tests.support.work import counted
from game_events_tests.support.worker_jobs import ReadByHand, task_numbers
from game_events_tests.support.worker_jobs import run as run_job

HEAD = 'syntax = "proto3"; package s; message Event {'
OLD = compiled(HEAD + "string game = 1; int32 n = 2; }", 71)
NEW = compiled(HEAD + "string game_name = 1; int32 n = 2; optional string device = 3; }", 72)
PLAN = plan_for((OLD, (0,)), (NEW, (0,)))
AT = datetime(2024, 1, 1, tzinfo=UTC)


def good(n, schema=NEW, **fields):
    return frame(schema.schema_id, (0,), python_class(schema)(n=n, **fields))


def records(values, partition=0, start=0):
    """A batch as a source reads it."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": "games",
                "topic_id": "topic-id",
                "partition": partition,
                "offset": start + i,
                "timestamp": AT,
                "key": None if i % 3 == 0 else b"k",
                "value": value,
                "headers": None if i % 2 else [{"key": "h", "value": None}, {"key": "h", "value": b"2"}],
            }
            for i, value in enumerate(values)
        ],
        schema=RECORD_SCHEMA,
    )


def refused(batch, reasons):
    """The batch, with reasons of records that are not decoded."""
    why = pa.array(reasons, pa.string())
    for name in ("reason", "detail"):
        batch = batch.set_column(batch.schema.get_field_index(name), name, why)
    return batch


def run(task, batches):
    """The result of a task that reads these batches."""
    return run_job(replace(task, reading=ReadByHand([batches])), task_numbers(0))


class Staged:
    """A task's result, read back from disk."""

    def __init__(self, root, batches, *, plan=PLAN, keep_raw=True, decided=None, record_filter=None):
        lakehouse = Lakehouse(str(root))
        bronze, quarantine = lakehouse.table(BRONZE), lakehouse.table(QUARANTINE)
        self.task = BronzeTask(
            bronze, quarantine, plan, ReadByHand([batches]), 9, "run 1", keep_raw, decided or {}, record_filter
        )
        self.result = run_job(pickle.loads(pickle.dumps(self.task)), task_numbers(0))  # noqa: S301 - our own bytes
        self.bronze = self._rows(bronze, self.result.bronze)
        self.quarantine = self._rows(quarantine, self.result.quarantine)
        self.on_disk = {f.name for f in Path(root).glob("*/*.parquet")}

    def _rows(self, table, files):
        return [row for f in files for row in pq.read_table(Path(table.uri) / f.path).to_pylist()]

    @property
    def good(self):
        return [row["_kafka_offset"] for row in self.bronze]

    @property
    def bad(self):
        return {row["_kafka_offset"]: row["reason"] for row in self.quarantine}


BAD = {
    None: Reason.TOMBSTONE,
    b"": Reason.TOO_SHORT,
    b"{}": Reason.BAD_MAGIC,
    b"\0\0\0\0\x47\x01": Reason.BAD_INDEX,
    b"\0\0\0\0\x47\0\xff": Reason.TRUNCATED,
}


def test_good_rows_go_to_bronze_with_their_coordinates_and_columns(tmp_path):
    values = [good(1, game_name="uno", device="d"), good(2, OLD, game="go"), good(3)]
    staged = Staged(tmp_path, [records(values, partition=4, start=100)])
    rows = {row["_kafka_offset"]: row for row in staged.bronze}
    assert sorted(rows) == [100, 101, 102]
    assert rows[100] == {
        "_kafka_topic": "games",
        "_kafka_topic_id": "topic-id",
        "_kafka_partition": 4,
        "_kafka_offset": 100,
        "_kafka_timestamp": AT,
        "_kafka_key": None,
        "_kafka_headers": [{"key": "h", "value": None}, {"key": "h", "value": b"2"}],
        "_schema_id": 72,
        "_schema_guid": None,
        "_message_type": "s.Event",
        "_raw_value": values[0],
        "_batch": 9,
        "_file_path": None,
        "_file_position": None,
        "game": "uno",
        "n": 1,
        "device": "d",
    }
    assert (rows[101]["game"], rows[101]["n"], rows[101]["device"], rows[101]["_schema_id"]) == ("go", 2, None, 71)
    assert rows[101]["_kafka_headers"] is None
    assert staged.result.types == {(71, (0,)), (72, (0,))}
    assert (staged.quarantine, staged.result.unknown) == ([], set())


def index_path(number):
    """Another index path for each number: of indexes that have one byte, then of ones with two."""
    path = [number % 60, number // 60 % 60] if number < 3_600 else [number, 1]
    return b"".join(_varint(2 * part) for part in (len(path), *path))


def _varint(value):
    octets = []
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


DISTINCT = {
    "index paths": lambda number: b"\0\0\0\0\x48" + index_path(number + 1) + b"x",
    "positions of the fault": lambda number: good(1, game_name="x" * number) + b"\x1f",
}


@pytest.mark.parametrize("kind", DISTINCT)
def test_records_that_choose_another_detail_each_are_written_at_once(tmp_path, monkeypatch, kind):
    written = []
    write = StagedWriter.write_columns
    monkeypatch.setattr(StagedWriter, "write_columns", lambda self, *args: (written.append(args[1]), write(self, *args))[1])
    count = 2_000
    staged, calls = counted(lambda: Staged(tmp_path, [records([DISTINCT[kind](number) for number in range(count)])]))
    assert sorted(staged.bad) == list(range(count))
    assert all(row["detail"] for row in staged.quarantine)
    assert written == [count]
    # With a write for each detail: some 700 a record.
    assert calls < 250 * count


def test_index_paths_that_no_schema_has_are_named_up_to_a_bound_and_all_rejected(tmp_path):
    staged = Staged(tmp_path, [records([DISTINCT["index paths"](number) for number in range(40)])])
    details = [row["detail"] for row in staged.quarantine]
    assert set(staged.bad.values()) == {Reason.BAD_INDEX}
    assert len([d for d in details if "at index path [" in d]) == MAX_UNKNOWN_PATHS
    assert details.count("schema id 72 has no message at the record's index path") == 40 - MAX_UNKNOWN_PATHS


def test_bad_rows_go_to_quarantine_with_reason_coordinates_and_their_bytes(tmp_path):
    staged = Staged(tmp_path, [records([good(0), *BAD], start=50)])
    assert staged.good == [50]
    assert staged.bad == {51 + i: reason for i, reason in enumerate(BAD.values())}
    rows = {row["_kafka_offset"]: row for row in staged.quarantine}
    assert [rows[51 + i]["_raw_value"] for i in range(len(BAD))] == list(BAD)
    assert all((r["layer"], r["_batch"], r["_kafka_topic"]) == ("bronze", 9, "games") for r in staged.quarantine)
    assert all(r["detail"] and r["quarantined_at"] is not None for r in staged.quarantine)
    assert [rows[51 + i]["_schema_id"] for i in range(len(BAD))] == [None, None, None, 71, 71]


def test_reasons_are_counted_over_all_batches(tmp_path):
    staged = Staged(tmp_path, [records([*BAD, None], start=0), records([good(1), b"{}"], start=10)])
    assert staged.result.reasons == {
        Reason.TOMBSTONE: 2, Reason.TOO_SHORT: 1, Reason.BAD_MAGIC: 2, Reason.BAD_INDEX: 1, Reason.TRUNCATED: 1,
    }  # fmt: skip


values = st.sampled_from(["old", "new", *BAD])


@settings(max_examples=30)
@given(batches=st.lists(st.lists(values, max_size=20), min_size=1, max_size=4), held=st.sets(st.integers(0, 60)))
def test_good_and_bad_are_all_rows_but_those_decided_before(batches, held, tmp_path_factory):
    made, kinds = [], []
    for kinds_of_batch in batches:
        start = len(kinds)
        contents = [good(i, OLD if k == "old" else NEW) if k in ("old", "new") else k for i, k in enumerate(kinds_of_batch)]
        made.append(records(contents, start=start))
        kinds += kinds_of_batch
    staged = Staged(
        tmp_path_factory.mktemp("stage"), made, decided={("topic-id", 0): frozenset(held), ("topic-id", 1): frozenset({0})}
    )
    left = [offset for offset in range(len(kinds)) if offset not in held]
    assert sorted([*staged.good, *staged.bad]) == left
    assert staged.bad == {offset: BAD[kinds[offset]] for offset in left if kinds[offset] in BAD}
    assert sum(staged.result.reasons.values()) == len(staged.bad)


def test_offsets_that_quarantine_holds_are_skipped_in_their_own_partition_only(tmp_path):
    batches = [records([None, good(1)], partition=p) for p in (0, 1)]
    staged = Staged(tmp_path, batches, decided={("topic-id", 0): frozenset({0, 7}), ("topic-id", 5): frozenset({0})})
    assert [(r["_kafka_partition"], r["_kafka_offset"]) for r in staged.quarantine] == [(1, 0)]
    assert [(r["_kafka_partition"], r["_kafka_offset"]) for r in staged.bronze] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("decided", [{}, {("topic-id", 0): frozenset()}, {("topic-id", 0): frozenset(range(10))}])
@pytest.mark.parametrize("values", [[], [None], [good(1)]])
def test_small_and_wholly_decided_batches_are_no_fault(tmp_path, values, decided):
    staged = Staged(tmp_path, [records(values)], decided=decided)
    held = set() if not decided else decided["topic-id", 0]
    assert len(staged.good) + len(staged.bad) == (0 if held else len(values))


def test_without_raw_values_bronze_keeps_none_and_quarantine_keeps_all(tmp_path):
    staged = Staged(tmp_path, [records([good(1), b"{}"])], keep_raw=False)
    assert [row["_raw_value"] for row in staged.bronze] == [None]
    assert [row["_raw_value"] for row in staged.quarantine] == [b"{}"]


def test_a_type_that_was_not_planned_for_leaves_no_file_and_every_such_type_is_reported(tmp_path):
    third = frame(73, (2, 1), python_class(OLD)())
    batches = [
        records([good(1), None]),
        records([third, b"{}"], start=2),
        records([frame(74, (0,), python_class(OLD)())], start=4),
    ]
    staged = Staged(tmp_path, batches)
    assert staged.result.unknown == {(73, (2, 1)), (74, (0,))}
    assert (staged.result.bronze, staged.result.quarantine, staged.on_disk) == ([], [], set())


def test_a_type_that_the_plan_rejects_is_quarantined_with_the_plans_words(tmp_path):
    plan = DecodePlan(PLAN.schemas, PLAN.types, {(75, ()): (Reason.UNKNOWN_SCHEMA, "no such id")}, PLAN.columns)
    staged = Staged(tmp_path, [records([frame(75, (0,), python_class(OLD)()), good(1)])], plan=plan)
    (row,) = staged.quarantine
    assert (row["reason"], row["detail"], row["_schema_id"]) == ("UNKNOWN_SCHEMA", "no such id", 75)
    assert staged.good == [1]


def test_a_schema_of_empty_messages_becomes_rows_as_well(tmp_path):
    text = """syntax = "proto3"; import "google/protobuf/empty.proto";
    message E {} message F { google.protobuf.Empty e = 1; E f = 2; }"""
    schema = compiled(text, 76)
    new = python_class(schema, (1,))
    values = [frame(76, (0,), python_class(schema)()), frame(76, (1,), new(e={})), frame(76, (1,), new(f={}))]
    staged = Staged(tmp_path, [records(values)], plan=plan_for((schema, (0,)), (schema, (1,))))
    rows = {row["_kafka_offset"]: (row["e"], row["f"]) for row in staged.bronze}
    assert rows == {0: (None, None), 1: (True, None), 2: (None, True)}


def test_a_time_nobody_can_read_is_one_bad_row_and_no_crash(tmp_path):
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message E { google.protobuf.Timestamp at = 1; }'
    schema = compiled(text, 77)
    values = [frame(77, (0,), python_class(schema)(at={"seconds": s})) for s in (1, 2**62, 2)]
    staged = Staged(tmp_path, [records(values)], plan=plan_for((schema, (0,))))
    assert (sorted(staged.good), staged.bad) == ([0, 2], {1: Reason.OUT_OF_RANGE})


@pytest.mark.parametrize("micros", [2**62, -(2**62), -1])
def test_a_records_own_timestamp_may_be_anything(tmp_path, micros):
    batch = records([good(1), None])
    times = pa.array([micros, micros], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    place = RECORD_SCHEMA.get_field_index("timestamp")
    batch = batch.set_column(place, RECORD_SCHEMA.field(place), times)
    result = run(Staged(tmp_path, []).task, [batch])
    assert [f.rows for f in (*result.bronze, *result.quarantine)] == [1, 1]


def test_the_files_have_the_columns_of_the_tables_and_the_map_in_their_metadata(tmp_path):
    staged = Staged(tmp_path, [records([good(1), None])])
    schema = bronze_schema(staged.task.plan.columns)
    assert schema.names == [*OWN_COLUMNS.names, "game", "n", "device"]
    assert all(schema.field(n).metadata for n in ("game", "n", "device"))
    assert list(staged.bronze[0]) == schema.names
    assert list(staged.quarantine[0]) == QUARANTINE_COLUMNS.names


def test_what_several_workers_report_is_one_result(tmp_path):
    parts = [Staged(tmp_path / str(i), [records([good(1), None])]).task for i in range(2)]
    result = StagedRows()
    for task in parts:
        result.add(run(task, [records([good(1), None])]))
    assert (len(result.bronze), len(result.quarantine)) == (2, 2)
    assert result.reasons == {Reason.TOMBSTONE: 2}
    assert result.types == {(72, (0,))}


def test_statistics_bound_the_offsets_and_the_batch(tmp_path):
    staged = Staged(tmp_path, [records([good(i) for i in range(5)], start=30)])
    (file,) = staged.result.bronze
    stats = json.loads(file.stats)
    assert [stats[k]["_kafka_offset"] for k in ("minValues", "maxValues")] == [30, 34]
    assert [stats[k]["_batch"] for k in ("minValues", "maxValues")] == [9, 9]


@pytest.mark.parametrize("keep_raw", [True, False])
def test_records_of_types_that_are_not_selected_are_in_bronze_as_they_came_and_counted(tmp_path, keep_raw):
    plan = replace(plan_for((NEW, (0,))), schemas={71: OLD, 72: NEW}, undecoded=frozenset({(71, (0,))}))
    values = [good(1, game_name="uno"), good(2, OLD, game="go"), good(3, OLD)[:-1]]
    staged = Staged(tmp_path, [records(values)], plan=plan, keep_raw=keep_raw)
    rows = {row["_kafka_offset"]: row for row in staged.bronze}
    assert sorted(rows) == [0, 1, 2]
    # Nothing else of them is kept: their bytes stay whatever the setting says.
    assert [rows[n]["_raw_value"] for n in (1, 2)] == values[1:]
    assert (rows[0]["_raw_value"] == values[0]) == keep_raw
    assert {(rows[n]["_schema_id"], rows[n]["game_name"], rows[n]["n"]) for n in (1, 2)} == {(71, None, None)}
    assert (staged.result.undecoded, staged.result.types) == ({(71, (0,)): 2}, {(72, (0,))})
    assert staged.quarantine == []


def test_forgotten_gamers_are_kept_out_of_records_that_are_not_decoded_by_key_and_place(tmp_path):
    plan = DecodePlan({71: OLD}, undecoded=frozenset({(71, (0,))}))
    key = b"a key of the tests"
    gone = ErasedPeople("gamer", key, frozenset({id_hash(key, b"k")}), frozenset({("topic-id", 0, 3)}))
    staged = Staged(tmp_path, [records([good(n, OLD) for n in range(7)])], plan=plan, record_filter=gone)
    # Every third record has no key, all others have `k`.
    assert staged.good == [0, 6]
    assert (staged.result.suppressed, staged.result.undecoded) == (5, {(71, (0,)): 2})


def test_forgotten_gamers_are_kept_out_of_records_that_are_too_large_by_their_key(tmp_path):
    """These come with the reason that the source's reader gave them."""
    batch = refused(records([b"x" * 10, good(1), b"y" * 10, b"z" * 10]), ["TOO_LARGE", None, "TOO_LARGE", "TOO_LARGE"])
    key = b"a key of the tests"
    gone = ErasedPeople("gamer", key, frozenset({id_hash(key, b"k")}), frozenset({("topic-id", 0, 3)}))
    staged = Staged(tmp_path, [batch], record_filter=gone)
    # The keys of all but every third record are theirs; the last record was noted by an erasure.
    assert (staged.bad, staged.good, staged.result.suppressed) == ({0: Reason.TOO_LARGE}, [1], 2)
    assert [row["_raw_value"] for row in staged.quarantine] == [b"x" * 10]
    assert staged.result.reasons == {Reason.TOO_LARGE: 1}


def test_records_that_crash_a_worker_are_in_quarantine_as_they_are_and_not_decoded(tmp_path, monkeypatch):
    staged = Staged(tmp_path, [records([good(1), good(2), b"no frame"])])
    deadly = {("topic-id", 0, 1): "it dies", ("topic-id", 0, 2): "it dies too", ("topic-id", 1, 0): "elsewhere"}
    task = replace(staged.task, deadly=deadly)
    decoded = []
    decode = BatchDecoder.decode
    monkeypatch.setattr(
        BatchDecoder, "decode", lambda self, values, *more: (decoded.extend(values), decode(self, values, *more))[1]
    )
    result = run(task, [records([good(1), good(2), b"no frame"])])
    assert [value.as_py() for value in decoded] == [good(1)]
    rows = [row for f in result.quarantine for row in pq.read_table(Path(task.quarantine.uri) / f.path).to_pylist()]
    found = [(row["_kafka_offset"], row["reason"], row["detail"], row["_raw_value"]) for row in rows]
    assert found == [(1, "MALFORMED", "it dies", good(2)), (2, "MALFORMED", "it dies too", b"no frame")]


def test_a_task_reads_what_its_numbers_say_and_tells_what_the_reader_notes(tmp_path):
    class Noting(ReadByHand):
        def batches(self, task, notes):
            notes.incomplete += 1
            notes.examples.append(f"of task {task}")
            yield from super().batches(task, notes)

    task = Staged(tmp_path, []).task
    reading = Noting([[records([good(n)], start=n)] for n in range(5)])
    result = run_job(replace(task, reading=reading), task_numbers(1, 3))
    rows = [row for f in result.bronze for row in pq.read_table(Path(task.bronze.uri) / f.path).to_pylist()]
    assert [row["_kafka_offset"] for row in rows] == [1, 3]
    assert (result.incomplete, result.examples) == (2, ["of task 1", "of task 3"])


def test_a_batch_that_could_become_too_much_is_decoded_part_by_part(tmp_path, monkeypatch):
    """Two bytes of an element can be a thousand values."""
    inner = " ".join(f"int64 f{n} = {n};" for n in range(1, 101))
    wide = compiled(f'syntax = "proto3"; package s; message Wide {{ repeated I i = 1; }} message I {{ {inner} }}', 73)
    value = b"\0\0\0\0\x49\0" + b"\x0a\0" * 100
    sizes, decode = [], BatchDecoder.decode

    def noted(self, values, *more):
        sizes.append(len(values))
        return decode(self, values, *more)

    monkeypatch.setattr(BatchDecoder, "decode", noted)
    monkeypatch.setattr(projection, "MAX_BATCH_CELLS", 100_000)
    plan, values = plan_for((wide, (0,))), [value, None] * 20 + [b"no frame"]
    staged = Staged(tmp_path / "cut", [records(values)], plan=plan)
    assert (max(sizes), sum(sizes)) == (18, 41)
    monkeypatch.undo()
    whole = Staged(tmp_path / "whole", [records(values)], plan=plan)
    assert (staged.bronze, staged.bad) == (whole.bronze, whole.bad)
    assert (staged.result.arrivals, staged.result.types) == (whole.result.arrivals, whole.result.types)


def test_stored_raw_values_are_decoded_part_by_part_too(tmp_path, monkeypatch):
    made = Staged(tmp_path, [records([good(n, game_name="uno") for n in range(50)])])
    rows = pa.RecordBatch.from_pylist(made.bronze, schema=bronze_schema(PLAN.columns))
    task = StoredTask(made.task.bronze, None, PLAN, 10, keep_raw=True, keep_undecodable=False)
    whole = [row for f in run_job(task, [rows]).bronze for row in pq.read_table(Path(task.bronze.uri) / f.path).to_pylist()]
    monkeypatch.setattr(projection, "MAX_BATCH_CELLS", 10)
    parted = [row for f in run_job(task, [rows]).bronze for row in pq.read_table(Path(task.bronze.uri) / f.path).to_pylist()]
    assert (len(parted), parted) == (50, whole)


def test_stored_rows_get_the_message_type_that_they_lack(tmp_path):
    """Rows of an earlier release, and of a schema whose name was not known, get it by a redecode."""
    made = Staged(tmp_path, [records([good(1), good(2, OLD), b"no frame"])])
    assert [row["_message_type"] for row in (*made.bronze, *made.quarantine)] == ["s.Event", "s.Event", None]
    without = [row | {"_message_type": None} for row in made.bronze]
    rows = pa.RecordBatch.from_pylist(without, schema=bronze_schema(PLAN.columns))
    task = StoredTask(made.task.bronze, None, PLAN, None, keep_raw=True, keep_undecodable=True)
    again = [row for f in run_job(task, [rows]).bronze for row in pq.read_table(Path(task.bronze.uri) / f.path).to_pylist()]
    assert again == made.bronze


def test_one_id_of_two_registries_is_decoded_by_the_schema_of_each_source(tmp_path):
    """Id 71 of `us` is another schema than that of `eu`, which has the plain ids."""
    other = replace(NEW, schema_id="us/71")
    plan = replace(plan_for((OLD, (0,)), (other, (0,))), registries={"eu": "", "us": "us"})
    plan = replace(plan, columns=replace(plan.columns, sourced=True))
    values = [good(1, OLD, game="go"), frame(71, (0,), python_class(NEW)(n=2, device="d")), b"\0\0\0\0\x63\0"]

    def of(source, batch):
        return batch.append_column("source", pa.repeat(pa.scalar(source, pa.string()), len(batch)))

    batches = [of("eu", records(values[:1])), of("us", records([values[1], b"no frame"]))]
    staged = Staged(tmp_path / "known", batches, plan=plan)
    told = [(row["_source"], row["_schema_id"], row["game"], row["device"]) for row in staged.bronze]
    assert told == [("eu", 71, "go", None), ("us", 71, "", "d")]
    assert [(row["_source"], row["reason"]) for row in staged.quarantine] == [("us", Reason.BAD_MAGIC)]
    unknown = Staged(tmp_path / "unknown", [of("eu", records(values[2:])), of("us", records(values[2:]))], plan=plan)
    assert unknown.result.unknown == {(99, (0,)), ("us/99", (0,))}

    rows = pa.RecordBatch.from_pylist(staged.bronze[::-1], schema=bronze_schema(plan.columns))
    task = StoredTask(staged.task.bronze, None, plan, None, keep_raw=True, keep_undecodable=True)
    again = [row for f in run_job(task, [rows]).bronze for row in pq.read_table(Path(task.bronze.uri) / f.path).to_pylist()]
    assert sorted(again, key=lambda row: row["_source"]) == staged.bronze
    # Of a source that is not named any more, under its name.
    gone = pa.RecordBatch.from_pylist([row | {"_source": "asia"} for row in staged.bronze], schema=bronze_schema(plan.columns))
    assert {schema_id for schema_id, _ in run_job(task, [gone]).unknown} == {"asia/71"}
