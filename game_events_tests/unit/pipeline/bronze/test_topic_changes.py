"""Topics that join, go or were made anew, by bronze's transactions and notes alone; another pipeline's table. No service."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import MAINTENANCE_INFO, Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.bronze.load import decided_on
from game_events.pipeline.bronze.offsets import changes
from game_events.pipeline.offsets import batch_info, bronze_commit, identity, next_offsets
from game_events.plugins.files.delta_table import TABLE
from game_events.sources.factory import make_source
from game_events.sources.source import Gap, MicroBatch, Partition, SourceSnapshot
from game_events_tests.support.offsets import next_micro_batch
from game_events_tests.support.tables import put, thin_out, without_retention

ONE, TWO = "5cB9Bc9QRbCeqUM/tZO+tg", "AAAAAAAAAAAAAAAAAAAAAQ"
A, B, C = Partition("t.a", ONE, 0), Partition("t.b", TWO, 0), Partition("t.c", ONE, 0)
BY_PATTERN = load_settings(kafka_topic_pattern=r"t\..", on_data_loss="record_gap")


@pytest.fixture
def table(tmp_path):
    """Bronze that has read the topic `t.a` up to 9, and `t.b` up to 4."""
    bronze = Lakehouse(str(tmp_path)).table(BRONZE)
    add(bronze, 1, {A: (0, 9), B: (0, 4)})
    return bronze


def add(bronze, batch, ranges, gaps=(), known=()):
    """A commit of bronze without rows."""
    advance = {split.app: end for split, (_, end) in ranges.items()} | identity([*ranges, *known]) | {"batch": batch}
    put(bronze, OWN_COLUMNS.empty_table(), advance, info=batch_info(batch, 0, 0, ranges, gaps, 0, known))


def plan(table, earliest, latest, settings=BY_PATTERN):
    return next_micro_batch(settings, table.open(), SourceSnapshot(earliest, latest), latest, 1_000)


def test_a_topic_that_joins_starts_with_what_it_has_and_gets_a_place_even_if_it_is_empty(table):
    part = plan(table, {A: 0, B: 0, C: 7}, {A: 9, B: 4, C: 12})
    assert (part.start, part.end, part.gaps, part.joined) == ({C: 7}, {C: 12}, (), ("t.c",))
    part = plan(table, {A: 0, B: 0, C: 7}, {A: 10, B: 4, C: 7})
    assert (part.start, part.end, part.joined) == ({A: 9, C: 7}, {A: 10, C: 7}, ("t.c",))
    add(table, 2, {C: (7, 7)}, known=(A, B))
    # What it forgets from then on is lost.
    part = plan(table, {A: 0, B: 0, C: 8}, {A: 9, B: 4, C: 9})
    assert part.gaps == (Gap("t.c", ONE, 0, 7, 8),)


def test_a_topic_that_is_gone_is_told_once_and_not_again_when_it_is_made_anew(table):
    gone = (Gap("t.b", TWO, 0, 4, None),)
    part = plan(table, {A: 0}, {A: 9})
    assert (part.start, part.end, part.gaps) == ({}, {}, gone)
    with pytest.raises(DataError, match=r"t\.b\[0\] of the topic that was deleted"):
        plan(table, {A: 0}, {A: 9}, load_settings(kafka_topic_pattern=r"t\.."))
    add(table, 2, {}, gone, known=(A,))
    assert plan(table, {A: 0}, {A: 9}) is None
    anew = Partition("t.b", ONE, 0)
    part = plan(table, {A: 0, anew: 2}, {A: 9, anew: 5})
    assert part.gaps == (Gap("t.b", ONE, 0, 0, 2),), "what it had before anybody looked"


def test_a_topic_that_is_gone_is_told_though_the_log_was_shortened_while_no_records_came(table):
    for _ in range(3):
        put(table, OWN_COLUMNS.empty_table(), info={MAINTENANCE_INFO: "compaction"})
        table.open().create_checkpoint()
        thin_out(without_retention(table))
    assert plan(table, {A: 0}, {A: 9}).gaps == (Gap("t.b", TWO, 0, 4, None),)
    add(table, 2, {A: (9, 10), B: (4, 4)})
    table.open().create_checkpoint()
    thin_out(without_retention(table))
    assert min(TableLog(table).versions()) == 4, "older entries are not needed any more"


def test_a_topic_that_the_settings_do_not_name_any_more_is_no_loss_and_goes_on_when_it_is_back(table):
    now = SourceSnapshot({A: 0}, {A: 9})
    settings, bronze = load_settings(kafka_topic="t.a"), table.open()
    found = changes(make_source(settings), settings, bronze, now, next_offsets(bronze, now.latest))
    assert not found.anything
    part = plan(table, {A: 0, B: 0}, {A: 9, B: 6}, load_settings(kafka_topic="t.a,t.b"))
    assert (part.start, part.end, part.joined) == ({B: 4}, {B: 6}, ())


def test_a_partition_that_is_assigned_later_was_not_bronzes_before(table):
    second = Partition("t.a", ONE, 1)
    settings = load_settings(kafka_assign={"t.a": [0, 1], "t.b": [0]})
    part = plan(table, {A: 0, B: 0, second: 3}, {A: 9, B: 4, second: 5}, settings)
    assert (part.start, part.end, part.gaps) == ({second: 3}, {second: 5}, ())


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.dictionaries(st.tuples(names, st.integers(0, 9)), st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=5))
def test_a_note_comes_back_whatever_a_topic_or_an_address_holds(ranges):
    ids = {name: str(uuid.uuid4()) for name, _ in ranges}
    made = {Partition(name, ids[name], number, TABLE): at for (name, number), at in ranges.items()}
    note = bronze_commit(batch_info(1, 2, 0, made, (), 0, [A]))
    assert (note.offsets, note.known["t.a"]) == (made, A)


def test_what_quarantine_has_decided_is_told_by_topic_and_of_a_table_by_its_records(tmp_path):
    quarantine = Lakehouse(str(tmp_path)).table("quarantine_events")
    held = [(ONE, 0, 9), (ONE, 0, 10), (TWO, 0, 10), (ONE, 1, 10)]
    rows = [dict(zip(("_kafka_topic_id", "_kafka_partition", "_kafka_offset"), at, strict=True)) for at in held]
    put(quarantine, pa.Table.from_pylist([r | {"layer": "bronze"} for r in rows], schema=QUARANTINE_COLUMNS))

    def found(start, end, until):
        """What of these splits is decided if quarantine stands there."""
        advance = {split.app: at for split, at in until.items()}
        handle = put(quarantine, QUARANTINE_COLUMNS.empty_table(), advance)
        return decided_on(quarantine, handle, MicroBatch(start, end))

    assert found({A: 10, B: 10}, {A: 12, B: 12}, {A: 12}) == {(ONE, 0): {10}}
    assert found({A: 10, B: 10}, {A: 12, B: 12}, {A: 10, B: 10}) == {}
    theirs = Partition("/lake/bronze_events", str(uuid.uuid4()), 0, TABLE)
    assert found({theirs: 2}, {theirs: 3}, {theirs: 3}) == {(ONE, 0): {9, 10}, (ONE, 1): {10}, (TWO, 0): {10}}


@pytest.fixture
def theirs(tmp_path):
    """Bronze of another pipeline, with batches of 3, 1 and 2 rows."""
    bronze = Lakehouse(str(tmp_path / "theirs")).table(BRONZE)
    for batch, rows in enumerate((0, 3, 1, 2)):
        grow(bronze, batch, rows)
    return bronze


def grow(bronze, batch, rows, **txns):
    put(bronze, pa.Table.from_pylist([{"_batch": batch}] * rows, schema=OWN_COLUMNS), {"batch": batch} | txns)


def test_a_table_is_read_batch_by_batch_as_many_as_there_is_room_for(theirs, tmp_path):
    def room(start, most):
        settings = load_settings(source_table=theirs.uri, lakehouse=str(tmp_path / "ours"), max_records_per_batch=most)
        source = make_source(settings)
        (split,) = source.snapshot().latest
        return source.batch_limit({split: start})

    assert [room(1, most) for most in (1, 3, 4, 5, 6, 100)] == [1, 1, 2, 2, 3, 3]
    assert [room(2, most) for most in (1, 2, 3)] == [1, 1, 2]
    DeltaTable(theirs.uri).optimize.compact()
    assert room(1, 100) == 3
    assert 1 <= room(1, 3) <= 2, "of a compacted file a part"


def test_a_table_whose_rows_were_replaced_is_another_one_and_stops_the_run(theirs, tmp_path):
    ours = Lakehouse(str(tmp_path / "ours")).table(BRONZE)
    settings = load_settings(source_table=theirs.uri, lakehouse=str(tmp_path / "ours"), on_data_loss="record_gap")
    now = make_source(settings).snapshot()
    (split,) = now.latest
    assert (now.earliest, now.latest) == ({split: 1}, {split: 4})
    add(ours, 1, {split: (1, 4)})
    assert next_micro_batch(settings, ours.open(), now, now.latest, 10) is None
    grow(theirs, 4, 1, **{Txn.INCARNATION: 4})
    changed = make_source(settings).snapshot()
    assert make_source(settings).changed(MicroBatch({split: 1}, {split: 4}))
    with pytest.raises(DataError, match="has other rows than those"):
        next_micro_batch(settings, ours.open(), changed, changed.latest, 10)
    with pytest.raises(ConfigurationError, match="one bronze has one source"):
        next_micro_batch(settings, ours.open(), SourceSnapshot({A: 0}, {A: 1}), {A: 1}, 10)


@pytest.mark.parametrize(("address", "says"), [("/nowhere/bronze_events", "no Delta table"), ("{ours}", "own bronze")])
def test_a_table_that_cannot_be_the_source_is_named(address, says, tmp_path):
    ours = str(tmp_path / "ours")
    settings = load_settings(source_table=address.format(ours=f"{ours}/{BRONZE}"), lakehouse=ours)
    with pytest.raises(ConfigurationError, match=says):
        make_source(settings).snapshot()


def test_a_delta_table_that_is_no_bronze_is_named(tmp_path):
    other = Lakehouse(str(tmp_path)).table("other")
    commit(Commit(other, pa.schema([pa.field("n", pa.int64())]), [], {}, {}, None))
    with pytest.raises(ConfigurationError, match="no bronze table of this project: it has no column _batch, _kafka_headers"):
        make_source(load_settings(source_table=other.uri, lakehouse=str(tmp_path / "ours"))).snapshot()
