"""A topic's id as transactions and notes keep it."""

import base64

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from game_events.pipeline.offsets import batch_info, bronze_commit, identity, offsets_of, topic_id_read
from game_events.sources.source import Gap, Partition
from game_events_tests.support.offsets import by_partition, splits

ids = st.binary(min_size=16, max_size=16).map(lambda b: base64.b64encode(b).decode().rstrip("="))


class Handle:
    """A table's transactions."""

    def __init__(self, txns):
        self.txns = txns

    def transaction_version(self, app):
        return self.txns.get(app)


@given(ids)
def test_an_id_of_any_bits_comes_back_from_two_transactions(topic_id):
    assert topic_id_read(Handle(identity([Partition("games", topic_id, 0)])), "games") == topic_id
    gaps = (Gap("games.a-b_c", topic_id, 3, 5, 9), Gap("games.a-b_c", topic_id, 4, 0, None))
    note = bronze_commit(batch_info(1, 2, 0, {Partition("games.a-b_c", topic_id, 3): (9, 11)}, gaps))
    assert (note.gaps, note.offsets) == (gaps, {Partition("games.a-b_c", topic_id, 3): (9, 11)})


def test_a_table_keeps_them(tmp_path):
    topic_id = "5cB9Bc9QRbCeqUM/tZO+tg"
    apps = [Transaction(f"kafka:games:{topic_id}:{p}", 7 + p) for p in range(2)]
    write_deltalake(str(tmp_path), pa.table({"n": [1]}), commit_properties=CommitProperties(app_transactions=apps))
    handle = DeltaTable(str(tmp_path))
    assert topic_id_read(handle, "games") is None
    assert offsets_of(handle, "games", topic_id) == splits("games", topic_id, {0: 7, 1: 8})
    # Of a partition with no record there was nothing to note.
    hole = Handle({Partition("games", topic_id, p).app: p for p in (1, 5, 300)})
    assert by_partition(offsets_of(hole, "games", topic_id)) == {1: 1, 5: 5}
    assert by_partition(offsets_of(hole, "games", topic_id, range(301))) == {1: 1, 5: 5, 300: 300}
    new = [Transaction(app, value) for app, value in identity([Partition("games", "/" * 21 + "w", 0)]).items()]
    write_deltalake(
        str(tmp_path), pa.table({"n": [1]}), mode="append", commit_properties=CommitProperties(app_transactions=new)
    )
    assert topic_id_read(DeltaTable(str(tmp_path)), "games") == "/" * 21 + "w"
