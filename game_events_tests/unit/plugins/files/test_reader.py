"""A worker's reading of files: every record with its position, and one row for whatever cannot be read."""

from __future__ import annotations

import bz2
import gzip
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, DecodePlan, compile_schema, make_decoder
from game_events.decoding.frame import RegistrySchema, schema_guid
from game_events.decoding.projection import ColumnsDecoder, ColumnsSchema, schema_text, stored
from game_events.plugins.files import avro_container
from game_events.plugins.files import records as rows
from game_events.plugins.files.location import SourceLocation
from game_events.plugins.files.readers import FileReading, format_of
from game_events.plugins.files.records import FileLimits, NamedSchema, identity_bytes, marked_records
from game_events.sources.source import RAW_SCHEMA, ReadNotes, joined
from game_events_tests.support.worlds.file_samples import JSON, PROTO, WRITERS, avro, event, lines, parquet, protobuf, put


def named(kind: str) -> NamedSchema:
    text = PROTO if kind == "PROTOBUF" else JSON
    guid = schema_guid(kind, text)
    path = (1,) if kind == "PROTOBUF" else ()
    return NamedSchema(RegistrySchema(guid, kind, text), (guid, path), identity_bytes(guid, path, indexed=kind == "PROTOBUF"))


KINDS = {"pb": named("PROTOBUF"), "jsonl": named("JSON"), "avro": None, "parquet": None}


PLENTY = FileLimits(10**6, 10**9, 2**26)


class Read:
    """What a worker makes of files: decoded rows by (file, position), and the refused ones."""

    def __init__(
        self,
        folder: Path,
        *paths: Path,
        schema: NamedSchema | None = None,
        framed: bool = False,
        parts: int = 1,
        bounds: FileLimits = PLENTY,
    ):
        files = [
            rows.FilePart(n, str(p), p.stat().st_size, 5, "log", part, parts)
            for n, p in enumerate(paths)
            for part in range(parts)
        ]
        reading = FileReading(SourceLocation(str(folder)), bounds, schema=schema, framed=framed, parts=[files])
        notes = ReadNotes()
        self.batches = list(pickle.loads(pickle.dumps(reading)).batches(0, notes))  # noqa: S301 - our own bytes
        self.rows: dict[tuple[int, int], dict[str, object]] = {}
        self.refused: dict[tuple[int, int], str] = {}
        self.bad: dict[tuple[int, int], str] = {}
        self.large: dict[tuple[int, int], str] = {}
        known = dict(notes.schemas) | ({schema.schema.schema_id: schema.schema} if schema is not None else {})
        compiled = {i: compile_schema(s) for i, s in known.items()}
        types = {(i, (1,) if s.format == "PROTOBUF" else ()) for i, s in known.items()}
        columns = ColumnMap()
        for schema_id, path in types:
            decoder = make_decoder(compiled[schema_id], path)
            columns = columns.with_message(decoder.message, decoder.fields)
        decoder = BatchDecoder(DecodePlan(compiled, frozenset(types), {}, columns))
        for batch in self.batches:
            self._take(batch, decoder)

    def _take(self, batch: pa.RecordBatch, decoder: BatchDecoder) -> None:
        for row in batch.filter(batch.column("reason").is_valid()).to_pylist():
            assert row["reason"] in ("UNREADABLE_FILE", "TOO_LARGE")
            large = row["reason"] == "TOO_LARGE"
            self._once(self.large if large else self.refused, row["at"], row["detail"])
        good = batch.filter(batch.column("reason").is_null())
        if "columns" in good.schema.names and len(good):
            decoded = decoder.decode_columns(good.column("schema_guid")[0].as_py(), good.column("columns"))
        else:
            decoded = decoder.decode(good.column("value"), good.column("headers"))
        assert not decoded.unknown
        at = good.column("at").to_pylist()
        for positions, _, table, _ in decoded.good:
            for position, row in zip(positions, table.to_pylist(), strict=True):
                self._once(self.rows, at[position], row)
        for rejected in decoded.rejected:
            for position in rejected.rows:
                self._once(self.bad, at[position], str(rejected.reason))

    def _once(self, into: dict[tuple[int, int], object], at: int, what: object) -> None:
        where = (at >> 32, at & (2**32 - 1))
        assert where not in {**self.rows, **self.refused, **self.bad, **self.large}, "a position stands for two things"
        into[where] = what


@pytest.mark.parametrize("ending", WRITERS)
def test_every_record_of_a_file_is_read_with_its_position(ending: str, tmp_path: Path) -> None:
    body = WRITERS[ending]
    files = [put(tmp_path, f"a.{ending}", body(range(5))), put(tmp_path, f"b.{ending}", body(range(5, 7)))]
    read = Read(tmp_path, *files, schema=KINDS[ending])
    assert read.rows == {(n // 5, n % 5): event(n) for n in range(7)}
    assert not read.refused
    assert len(read.batches) == 1, "small files are not put together"
    assert read.batches[0].column("file_path").to_pylist() == [str(files[n // 5]) for n in range(7)]


# fastavro writes the other two only with a package that is not needed for anything else: see the next test.
@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_codec_of_avro_is_unpacked(codec: str, tmp_path: Path) -> None:
    assert len(Read(tmp_path, put(tmp_path, "a.avro", avro(range(50), codec))).rows) == 50


def test_snappy_and_zstandard_blocks_are_what_the_specification_says() -> None:
    text = b"block " * 100
    packed = pa.compress(text, codec="snappy", asbytes=True)
    checksum = avro_container.zlib.crc32(text).to_bytes(4, "big")
    assert avro_container.unpack(packed + checksum, "snappy") == text
    with pytest.raises(ValueError, match="checksum"):
        avro_container.unpack(packed + bytes(4), "snappy")
    assert avro_container.unpack(pa.compress(text, codec="zstd", asbytes=True), "zstandard") == text


def test_compressed_lines_and_messages_are_read(tmp_path: Path) -> None:
    files = [
        put(tmp_path, "a.jsonl.gz", gzip.compress(lines(range(3)))),
        put(tmp_path, "b.jsonl.bz2", bz2.compress(lines(range(2)))),
    ]
    assert len(Read(tmp_path, *files, schema=KINDS["jsonl"]).rows) == 5
    cut = put(tmp_path, "c.jsonl.gz", gzip.compress(lines(range(30_000)))[:-2000])
    read = Read(tmp_path, cut, schema=KINDS["jsonl"])
    assert len(read.refused) == 1
    assert read.rows == {}  # the one chunk of it could not be unpacked


def test_records_that_are_larger_than_a_chunk_are_read(tmp_path: Path) -> None:
    for ending in ("pb", "jsonl"):
        file = put(tmp_path, f"a.{ending}", WRITERS[ending](range(20)))
        assert Read(tmp_path, file, schema=KINDS[ending], bounds=replace(PLENTY, batch=7)).rows == {
            (0, n): event(n) for n in range(20)
        }


def test_a_message_may_be_larger_than_its_compressed_file(tmp_path: Path) -> None:
    text = "long" * 5000
    message = b"\x0a\xa0\x9c\x01" + text.encode()  # field 1, of 20,000 bytes
    file = put(tmp_path, "a.pb.gz", gzip.compress((b"\xa4\x9c\x01" + message) * 2))
    assert file.stat().st_size < len(text)
    read = Read(tmp_path, file, schema=KINDS["pb"], bounds=replace(PLENTY, batch=1_000))
    assert ([row["game_name"] for row in read.rows.values()], read.refused) == ([text, text], {})


@settings(max_examples=50)
@given(cut=st.integers(1, 400))
def test_of_a_file_that_was_cut_off_all_records_before_the_cut_are_read_and_the_rest_is_one_row(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = protobuf(range(12))
    ends = [len(protobuf(range(n))) for n in range(13)]
    cut = min(cut, len(whole) - 1)
    read = Read(folder, put(folder, "a.pb", whole[:cut]), schema=KINDS["pb"])
    good = max(n for n, end in enumerate(ends) if end <= cut)
    assert read.rows == {(0, n): event(n) for n in range(good)}
    assert list(read.refused) == ([] if cut in ends else [(0, good)])


def test_a_single_bad_line_costs_only_itself(tmp_path: Path) -> None:
    body = lines(range(2)) + b"{half\n\n\r\n" + lines(range(5, 6)) + b'{"game_name": "no line break"}'
    read = Read(tmp_path, put(tmp_path, "a.jsonl", body), schema=KINDS["jsonl"])
    assert {p: r["n"] for (_, p), r in read.rows.items()} == {0: 0, 1: 1, 5: 5, 6: None}
    assert read.bad == {(0, 2): "MALFORMED"}


def test_a_bad_text_in_an_avro_record_costs_only_that_record(tmp_path: Path) -> None:
    body = avro(range(4), "null").replace(b"g2", b"\xff\xff")
    read = Read(tmp_path, put(tmp_path, "a.avro", body))
    assert sorted(read.rows) == [(0, 0), (0, 1), (0, 3)]
    assert read.bad == {(0, 2): "BAD_UTF8"}


def test_a_damaged_avro_block_costs_that_block_and_a_cut_one_the_rest(tmp_path: Path) -> None:
    body = bytearray(avro(range(40), "deflate", block=100))
    sync = bytes(body[-16:])
    first = body.index(sync) + 16
    second = body.index(sync, first) + 16
    body[first + 6 : first + 12] = bytes(6)
    read = Read(tmp_path, put(tmp_path, "a.avro", bytes(body)))
    assert len(read.refused) == 1
    ((_, at),) = read.refused
    assert at == 0
    assert set(read.rows) | {(0, n) for n in range(40)} == {(0, n) for n in range(40)}
    assert (0, 39) in read.rows, "what is behind the damaged block is read"
    assert second < len(body)
    cut = Read(tmp_path, put(tmp_path, "b.avro", avro(range(40), "deflate", block=100)[:-5]))
    assert len(cut.refused) == 1
    assert list(cut.rows) == [(0, n) for n in range(len(cut.rows))]
    assert list(cut.refused) == [(0, len(cut.rows))]


def test_a_block_that_announces_more_records_than_a_file_may_have_costs_the_rest_and_no_other_file(tmp_path: Path) -> None:
    body = avro(range(40), "null", block=100)
    first = body.index(body[-16:]) + 16
    body = body[:first] + b"\x80\x80\x80\x80\x40" + body[first + 1 :]  # 2^33 records
    read = Read(tmp_path, put(tmp_path, "a.avro", body))
    assert (read.rows, list(read.refused)) == ({}, [(0, 0)])


def test_records_left_of_a_block_behind_a_damaged_one_are_one_row(tmp_path: Path) -> None:
    # The second record's text is longer than the block.
    body = avro(range(3), "null").replace(b"\x0arummy", b"\xfe\x0arummy"[:6], 1)
    read = Read(tmp_path, put(tmp_path, "a.avro", body))
    assert list(read.rows) == [(0, 0)]
    assert list(read.refused) == [(0, 1)]


@pytest.mark.parametrize("body", [b"", b"PAR1", b"no file of any format at all", bytes(64), b"Obj\x01\x02"])
@pytest.mark.parametrize("ending", ["avro", "parquet"])
def test_what_is_no_file_of_its_format_is_one_row(body: bytes, ending: str, tmp_path: Path) -> None:
    read = Read(tmp_path, put(tmp_path, f"a.{ending}", body))
    assert (read.rows, list(read.refused)) == ({}, [(0, 0)])


def test_a_file_of_no_known_format_or_without_its_schema_is_one_row(tmp_path: Path) -> None:
    read = Read(tmp_path, put(tmp_path, "a.xyz", b"?"), put(tmp_path, "b.jsonl", lines(range(2))))
    assert list(read.refused) == [(0, 0), (1, 0)]
    assert "GAME_EVENTS_FILES_SCHEMA" in read.refused[1, 0]


def test_a_damaged_row_group_costs_only_itself(tmp_path: Path) -> None:
    body = bytearray(parquet(range(30), group=10))
    group = pq.ParquetFile(pa.BufferReader(bytes(body))).metadata.row_group(1)
    start = min(group.column(c).dictionary_page_offset or group.column(c).data_page_offset for c in range(4))
    body[start : start + 20] = b"\xff" * 20
    read = Read(tmp_path, put(tmp_path, "a.parquet", bytes(body)))
    assert list(read.refused) == [(0, 10)]
    assert sorted(read.rows) == [(0, n) for n in (*range(10), *range(20, 30))]


def test_parts_of_a_large_parquet_file_are_all_of_it_once(tmp_path: Path) -> None:
    read = Read(tmp_path, put(tmp_path, "a.parquet", parquet(range(50), group=7)), parts=3)
    assert read.rows == {(0, n): event(n) for n in range(50)}


def test_a_file_that_is_gone_is_an_error_and_no_damage(tmp_path: Path) -> None:
    file = put(tmp_path, "a.jsonl", lines(range(1)))
    files = [[rows.FilePart(0, str(file), 1, 1, "log")]]
    reading = FileReading(SourceLocation(str(tmp_path)), PLENTY, schema=KINDS["jsonl"], parts=files)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        list(reading.batches(0, ReadNotes()))


def test_types_of_parquet_columns_become_those_that_bronze_stores() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    table = pa.table(
        {
            "small": pa.array([1, None], pa.int8()),
            "huge": pa.array([2**64 - 1, None], pa.uint64()),
            "text": pa.array(["a", None], pa.large_string()),
            "word": pa.array(["a", None]).dictionary_encode(),
            "naive": pa.array([when.replace(tzinfo=None), None], pa.timestamp("ns")),
            "day": pa.array([date(2026, 1, 2), None], pa.date64()),
            "clock": pa.array([time(0, 0, 1), None], pa.time32("ms")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "tags": pa.array([["x", None], None], pa.large_list(pa.large_string())),
            "inner": pa.array(
                [{"a": 1, "b": {"c": 2.5}}, None], pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.float32())]))])
            ),
            "pairs": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int16())),
            "nothing": pa.nulls(2),
        }
    )
    (batch,) = table.to_batches()
    rows_ = stored(batch.to_struct_array())
    schema = ColumnsSchema("g", schema_text(rows_.type))
    decoder = ColumnsDecoder(schema)
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    decoded = decoder.decode(rows_.slice(0, 2), columns)
    first, second = decoded.table.to_pylist()
    assert first == {
        "small": 1, "huge": Decimal(2**64 - 1), "text": "a", "word": "a", "naive": when, "day": date(2026, 1, 2),
        "clock": 1_000_000, "price": Decimal("1.50"), "tags": ["x", None],
        "inner": {"a": 1, "b": {"c": 2.5}}, "pairs": [("k", 1)],
    }  # fmt: skip
    assert second == dict.fromkeys(first)
    assert decoder.decode(rows_.slice(1), columns).table.to_pylist() == [second]


@pytest.mark.parametrize(
    ("name", "wanted", "found"),
    [
        ("a.parquet", "auto", ("parquet", None)),
        ("a.JSONL", "auto", ("jsonl", None)),
        ("dir.avro/a.json.gz", "auto", ("jsonl", "gzip")),
        ("a", "auto", (None, None)),
        ("a.bin", "protobuf", ("protobuf", None)),
    ],
)
def test_a_format_is_told_by_the_name_or_the_setting(name: str, wanted: str, found: tuple[str | None, str | None]) -> None:
    assert format_of(name, wanted) == found


def test_a_union_or_a_type_that_holds_itself_is_split_into_records(tmp_path: Path) -> None:
    tree = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "next", "type": ["null", "Node"]},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
            {"name": "id", "type": {"type": "fixed", "name": "F", "size": 3}},
            {"name": "empty", "type": {"type": "array", "items": "null"}},
        ],
    }
    node = {"n": 1, "next": None, "tags": {"a": [1, 2]}, "kind": "B", "id": b"xyz", "empty": [None] * 5}
    out = avro_container_file(tree, [{**node, "next": node}, node])
    read = Read(tmp_path, put(tmp_path, "a.avro", out))
    assert {p: r["n"] for (_, p), r in read.rows.items()} == {0: 1, 1: 1}


def avro_container_file(schema: dict[str, object], records: list[dict[str, object]]) -> bytes:
    import io  # noqa: PLC0415

    import fastavro  # noqa: PLC0415

    out = io.BytesIO()
    fastavro.writer(out, schema, records)
    return out.getvalue()


def test_small_batches_are_put_together_and_no_row_is_lost() -> None:
    file = rows.FilePart(3, "p", 1, 1, "log")
    batches = [rows.unreadable(file, n, "d") for n in range(5)]
    other = batches[0].select(["topic"])
    assert [len(b) for b in joined([*batches, other, other, *batches])] == [5, 2, 5]


def test_files_of_an_archive_are_read_where_its_log_names_them_and_no_others(tmp_path: Path) -> None:
    """Else records come twice: from files that a crash has left there, from files that somebody joined."""
    record = {"topic": "t", "topic_id": "i", "partition": 1, "offset": 7, "value": b"v"}
    for name, schema in (("own", marked_records([])), ("joined", RAW_SCHEMA)):
        pq.write_table(pa.Table.from_pylist([record], schema=schema), tmp_path / f"{name}.parquet")

    def read(name: str, *, archive: bool) -> dict[str, object]:
        path = tmp_path / f"{name}.parquet"
        files = [[rows.FilePart(0, str(path), path.stat().st_size, 5, "log")]]
        (batch,) = FileReading(SourceLocation(str(tmp_path)), PLENTY, archive=archive, parts=files).batches(0, ReadNotes())
        (row,) = batch.to_pylist()
        return row

    assert read("own", archive=True).items() >= record.items()
    for name, archive, said in (("own", False, "the archive's own folder"), ("joined", True, "OPTIMIZE")):
        row = read(name, archive=archive)
        assert (row["reason"], row["value"]) == ("UNREADABLE_FILE", None)
        assert said in str(row["detail"])
