"""Files that ask for more than a file may have: they harm only themselves, in bounded time and memory, and it is told."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.config.settings import Settings
from game_events.decoding.frame import KEPT_BYTES
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.files.location import LINK, MAX_DEPTH, NotAFileError, SourceLocation
from game_events.plugins.files.readers import FileReading
from game_events.plugins.files.records import FilePart, marked_records
from game_events.plugins.files.source import FileSchemas, FileSource
from game_events.schema_registry import RegistrySchema, SchemaLookup
from game_events.sources.source import BATCH_BYTES, ReadNotes, SourceContext
from game_events_tests.support.worlds.file_samples import WRITERS, avro, event, lines, parquet, protobuf, put
from game_events_tests.unit.plugins.files.test_reader import KINDS, PLENTY, Read

SYNC = b"S" * 16


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def zigzag(number: int) -> bytes:
    return varint(number << 1)


def container(schema: object, *blocks: tuple[int, bytes]) -> bytes:
    """An Avro file with these blocks: how many records each one announces, and its bytes."""
    text = json.dumps(schema).encode()
    head = b"Obj\x01" + zigzag(1) + zigzag(11) + b"avro.schema" + zigzag(len(text)) + text + zigzag(0) + SYNC
    return head + b"".join(zigzag(count) + zigzag(len(body)) + body + SYNC for count, body in blocks)


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_has_as_many_records_as_the_setting_says_and_what_is_left_of_it_is_one_row(ending: str, tmp_path: Path) -> None:
    bounds = replace(PLENTY, rows=3)
    files = [put(tmp_path, f"{n}.{ending}", WRITERS[ending](range(n))) for n in (3, 4, 2)]
    read = Read(tmp_path, *files, schema=KINDS[ending], bounds=bounds)
    # How many rows a Parquet file has it says at its end: then nothing of it is read.
    mine = 0 if ending == "parquet" else 3
    wanted = (
        {(0, n): event(n) for n in range(3)} | {(1, n): event(n) for n in range(mine)} | {(2, n): event(n) for n in range(2)}
    )
    assert read.rows == wanted
    assert list(read.large) == [(1, mine)]
    assert "GAME_EVENTS_FILES_MAX_ROWS" in read.large[1, mine]


@pytest.mark.parametrize("ending", ["jsonl", "pb"])
@pytest.mark.parametrize(("codec", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_is_unpacked_up_to_the_bound(ending: str, codec: str, pack: object, tmp_path: Path) -> None:
    body = WRITERS[ending](range(4_000))
    blank = b"\n" * 3_000_000  # lines of nothing are no records, but somebody has to look at them
    bomb = put(tmp_path, f"a.{ending}.{codec}", pack(body + (blank if ending == "jsonl" else body * 9)))  # type: ignore[operator]
    good = put(tmp_path, f"b.{ending}.{codec}", pack(body))  # type: ignore[operator]
    bounds = replace(PLENTY, unpacked=len(body) + 1_000)
    read = Read(tmp_path, bomb, good, schema=KINDS[ending], bounds=bounds)
    assert sum(number == 1 for number, _ in read.rows) == 4_000
    assert [number for number, _ in read.large] == [0]
    assert "GAME_EVENTS_FILES_MAX_UNPACKED_BYTES" in next(iter(read.large.values()))


def test_avro_blocks_are_unpacked_up_to_the_bound(tmp_path: Path) -> None:
    file = put(tmp_path, "a.avro", avro(range(2_000), "deflate", block=2_000))
    read = Read(tmp_path, file, bounds=replace(PLENTY, unpacked=20_000))
    assert 0 < len(read.rows) < 2_000
    assert list(read.large) == [(0, len(read.rows))]


def test_records_without_bytes_cannot_be_announced_by_the_million(tmp_path: Path) -> None:
    nothing = {"type": "record", "name": "Nothing", "fields": []}
    bomb = put(tmp_path, "a.avro", container(nothing, (3_000_000, b""), (2**32 - 3_000_001, b"")))
    assert bomb.stat().st_size < 150
    read = Read(tmp_path, bomb, put(tmp_path, "b.avro", avro(range(2))), bounds=replace(PLENTY, rows=2**32 - 1))
    assert sorted(read.rows) == [(1, 0), (1, 1)]
    assert set(read.refused) == {(0, 0), (0, 3_000_000)}
    assert "3,000,000 records are announced in 0 bytes" in read.refused[0, 0]


@pytest.mark.parametrize("batch", [1_000, 3 * KEPT_BYTES // 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", ["pb", "jsonl"])
def test_a_record_that_is_too_large_is_cut_and_those_behind_it_are_read(
    ending: str, packed: bool, batch: int, tmp_path: Path
) -> None:
    body = WRITERS[ending]
    size = 2 * KEPT_BYTES
    large = b'{"n": "' + b"x" * (size - 9) + b'"}\n' if ending == "jsonl" else varint(size) + bytes(size)
    file = body(range(2)) + large + body(range(3, 5))
    path = put(tmp_path, f"a.{ending}" + ".gz" * packed, gzip.compress(file) if packed else file)
    read = Read(tmp_path, path, schema=KINDS[ending], bounds=replace(PLENTY, record=10_000, batch=batch))
    assert read.rows == {(0, n): event(n) for n in (0, 1, 3, 4)}
    assert list(read.large) == [(0, 2)]
    assert f"a record of {size:,}"[:-3] in read.large[0, 2]
    assert not read.refused
    held = [row["value"] for b in read.batches for row in b.to_pylist() if row["reason"] == "TOO_LARGE"]
    assert [0 < len(value) <= KEPT_BYTES for value in held] == [True]


def test_the_last_line_may_be_too_large_as_well(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", lines(range(1)) + b"x" * 20_000)
    read = Read(tmp_path, path, schema=KINDS["jsonl"], bounds=replace(PLENTY, record=10_000, batch=1_000))
    assert (len(read.rows), list(read.large)) == (1, [(0, 1)])


@pytest.mark.parametrize("packed", [False, True])
def test_a_message_that_announces_two_gigabytes_which_are_not_there_is_the_rest_of_its_file(
    packed: bool, tmp_path: Path
) -> None:
    file = protobuf(range(3)) + b"\xff\xff\xff\xff\x07" + bytes(1_000)
    path = put(tmp_path, "a.pb" + ".gz" * packed, gzip.compress(file) if packed else file)
    read = Read(tmp_path, path, schema=KINDS["pb"])
    assert (len(read.rows), list(read.refused)) == (3, [(0, 3)])
    assert "2,147,483,6" in read.refused[0, 3]


@pytest.mark.parametrize("ending", ["avro", "parquet"])
def test_single_records_of_other_formats_that_are_too_large_are_rows_of_their_own(ending: str, tmp_path: Path) -> None:
    rows = [event(n) | {"gamer_id": "x" * (50_000 if n == 2 else 5)} for n in range(5)]
    out = io.BytesIO()
    if ending == "avro":
        import fastavro  # noqa: PLC0415

        from game_events_tests.support.worlds.file_samples import AVRO  # noqa: PLC0415

        fastavro.writer(out, AVRO, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), out)
    read = Read(tmp_path, put(tmp_path, f"a.{ending}", out.getvalue()), bounds=replace(PLENTY, record=10_000))
    assert sorted(read.rows) == [(0, n) for n in (0, 1, 3, 4)]
    assert list(read.large) == [(0, 2)]


def bomb(rows: int, size: int, *, stored: bool = False) -> bytes:
    """A Parquet file of some hundred bytes: one long text that all of its rows have."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    out = io.BytesIO()
    pq.write_table(pa.table({"gamer_id": column, "n": range(rows)}), out, compression="zstd", store_schema=stored)
    return out.getvalue()


@pytest.mark.parametrize("stored", [False, True])
def test_a_parquet_file_that_unpacks_to_more_than_fits_into_memory_is_read_in_smaller_batches(
    stored: bool, tmp_path: Path
) -> None:
    body = bomb(150, 2_000_000, stored=stored)
    assert len(body) < 10_000
    files = put(tmp_path, "a.parquet", body), put(tmp_path, "b.parquet", parquet(range(3)))
    read = Read(tmp_path, *files, bounds=replace(PLENTY, memory=64 * 2**20, batch=2**23))
    assert sorted(read.rows) == [*((0, n) for n in range(150)), *((1, n) for n in range(3))]
    assert max(batch.nbytes for batch in read.batches) < BATCH_BYTES + 2**23


def test_a_row_that_does_not_fit_into_memory_at_all_is_what_is_left_of_its_row_group(tmp_path: Path) -> None:
    out = io.BytesIO()
    lists = pa.array([[None] * 20_000_000], pa.list_(pa.int64()))
    pq.write_table(pa.table({"l": lists}), out, compression="zstd")
    assert len(out.getvalue()) < 2_000
    files = put(tmp_path, "a.parquet", out.getvalue()), put(tmp_path, "b.parquet", parquet(range(3)))
    read = Read(tmp_path, *files, bounds=replace(PLENTY, memory=64 * 2**20))
    assert sorted(read.rows) == [(1, n) for n in range(3)]
    assert list(read.large) == [(0, 0)]


def test_rows_of_a_parquet_file_are_unpacked_up_to_the_bound(tmp_path: Path) -> None:
    read = Read(tmp_path, put(tmp_path, "a.parquet", bomb(300, 500_000)), bounds=replace(PLENTY, unpacked=10**7, batch=2**20))
    assert 0 < len(read.rows) <= 20
    assert list(read.large) == [(0, len(read.rows))]


# --- names that are skipped


def listed(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Files below a folder, and what is skipped there."""
    skipped: dict[str, str] = {}
    found = SourceLocation(str(folder)).listing("*", skipped)
    return sorted(f.path.removeprefix(f"{folder}/") for f in found), {
        p.removeprefix(f"{folder}/"): why for p, why in skipped.items()
    }


def test_symbolic_links_are_not_followed_and_each_file_is_there_once(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside/secret.jsonl", b"secret")
    landing = tmp_path / "landing"
    put(landing, "a.jsonl", b"{}")
    put(landing, "sub/b.jsonl", b"{}")
    (landing / "x.jsonl").symlink_to(outside)
    (landing / "d").symlink_to(outside.parent)
    (landing / "sub/loop").symlink_to("..")
    (landing / "gone.jsonl").symlink_to("nowhere")
    os.mkfifo(landing / "pipe.jsonl")
    assert listed(landing) == (["a.jsonl", "sub/b.jsonl"], dict.fromkeys(["d", "gone.jsonl", "sub/loop", "x.jsonl"], LINK))


def test_folders_nested_without_end_are_left_at_a_depth_and_told(tmp_path: Path) -> None:
    """So deep that a path is longer than the system takes; and beside them everything is read."""
    put(tmp_path, "a.jsonl", b"{}")
    put(tmp_path, "/".join("s" * MAX_DEPTH) + "/b.jsonl", b"{}")
    held = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2_100):
        os.mkdir("d", dir_fd=held)
        inner = os.open("d", os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = inner
    os.close(held)
    try:
        assert listed(tmp_path) == (
            ["a.jsonl", "/".join("s" * MAX_DEPTH) + "/b.jsonl"],
            {"/".join("d" * (MAX_DEPTH + 1)): f"it is more than {MAX_DEPTH} folders deep"},
        )
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)  # Python's own goes by paths


def test_a_path_that_is_too_long_for_the_system_is_skipped_and_told(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", b"{}")
    held = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=held)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = inner
        os.close(os.open("f.jsonl", os.O_CREAT | os.O_WRONLY, dir_fd=held))
    os.close(held)
    found, skipped = listed(tmp_path)
    assert (found[0], set(skipped.values())) == ("a.jsonl", {"File name too long"})
    assert all(len(f"{tmp_path}/{name}") < 4096 for name in found)


def test_a_name_that_is_no_text_is_skipped_and_told_and_the_others_are_taken_in(landing: Path, file_settings: Settings) -> None:
    """Tables hold names as UTF-8."""
    put(landing, "a.jsonl", b"{}")
    for name in (b"x\xff.jsonl", b"y\xfe/b.jsonl"):
        path = Path(os.fsdecode(os.fsencode(landing) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{}")
    source = FileSource(SourceContext(file_settings.model_copy(update={"files_settle_s": 0}), Lakehouse.of(file_settings)))
    source.snapshot()
    source.snapshot()
    assert dict(source.counts) == {"taken": 1, "skipped": 2, "waiting": 0, "links": 0, "changed": 0}
    report = RunReport("r")
    report.add_files(source.counts)
    assert [n for n in report.notices if "2 names in the folder of files are skipped" in n]


def test_a_name_never_makes_a_line_of_the_log(landing: Path, file_settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    name = "a\nlevel=error forged=true.jsonl"
    put(landing, name, b"{}")
    (landing / "b\nforged=true").symlink_to("nowhere")
    source = FileSource(SourceContext(file_settings, Lakehouse.of(file_settings)))
    source.snapshot()
    put(landing, name, b"{ }", age_s=50)
    source.snapshot()
    assert source.counts["changed"] == source.counts["links"] == 1
    said = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert len(said) == 2
    assert not any("\n" in line for line in said)


def test_what_may_not_be_listed_is_skipped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "secret/b.jsonl", "sub/c.jsonl"):
        put(tmp_path, name, b"{}")
    scandir = os.scandir

    def refusing(folder: str) -> object:
        if folder.endswith("/secret"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    assert listed(tmp_path) == (["a.jsonl", "sub/c.jsonl"], {"secret": "Permission denied"})


def test_a_folder_of_the_settings_that_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(folder: str) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ConfigurationError, match=rf"GAME_EVENTS_FILES_PATH: {tmp_path} .*Permission denied"):
        listed(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_file_that_may_not_be_opened_is_one_row_and_the_others_are_read(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a.jsonl", "b.jsonl", "closed/c.jsonl", "d.jsonl")
    files = [put(tmp_path, name, lines(range(n, n + 1))) for n, name in enumerate(names)]
    real = os.open

    def refusing(path: str, flags: int, *mode: int, **other: int) -> int:
        if path in ("b.jsonl", "closed"):
            raise PermissionError(number, os.strerror(number), path)
        return real(path, flags, *mode, **other)

    monkeypatch.setattr(os, "open", refusing)
    read = Read(tmp_path, *files, schema=KINDS["jsonl"])
    assert sorted(read.rows) == [(0, 0), (3, 0)]
    assert sorted(read.refused) == [(1, 0), (2, 0)]
    assert all(f"may not be read ({os.strerror(number)})" in detail for detail in read.refused.values())


def test_a_folder_of_the_settings_that_may_not_be_opened_is_no_damage_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = put(tmp_path, "a.jsonl", lines(range(1))), os.open

    def refusing(path: str, flags: int, *mode: int, **other: int) -> int:
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *mode, **other)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError):
        Read(tmp_path, file, schema=KINDS["jsonl"])


def test_what_became_a_link_since_it_was_listed_is_not_followed_either(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside/secret.jsonl", b"secret")
    landing = tmp_path / "landing"
    paths = [put(landing, name, b"{}") for name in ("a.jsonl", "sub/secret.jsonl", "c.jsonl", "d.jsonl")]
    paths[0].unlink()
    paths[0].symlink_to(outside)
    paths[1].unlink()
    paths[1].parent.rmdir()
    paths[1].parent.symlink_to(outside.parent)
    paths[2].unlink()
    os.mkfifo(paths[2])
    place = SourceLocation(str(landing))
    for name in [*map(str, paths[:3]), f"{landing}/../outside/secret.jsonl", str(outside)]:
        with pytest.raises(NotAFileError), place.open(name):
            pass
    with place.open(str(paths[3])) as source:
        assert source.read() == b"{}"


# --- schemas that files bring


class Registry(SchemaLookup):
    """Knows one id."""

    url = "http://registry"

    def fetch(self, schema_id: object) -> RegistrySchema | None:
        return RegistrySchema(7, "AVRO", "the registry's") if schema_id == 7 else None


def test_a_file_that_is_refused_brings_no_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    brought = RegistrySchema(7, "AVRO", "another", (("--plugin=x", "y"),))
    pq.write_table(marked_records([brought]).empty_table(), path)
    file = FilePart(0, str(path), path.stat().st_size, 5, "log")
    notes = ReadNotes()
    (batch,) = FileReading(SourceLocation(str(tmp_path)), PLENTY, parts=[[file]]).batches(0, notes)
    assert batch.column("reason").to_pylist() == ["UNREADABLE_FILE"]
    assert notes.schemas == {}


def test_what_a_file_says_of_a_registrys_id_never_wins_over_the_registry() -> None:
    schemas = FileSchemas(Registry(), framed=True)  # type: ignore[arg-type]
    schemas.offer([RegistrySchema(7, "AVRO", "another"), RegistrySchema(8, "AVRO", "of an archive")])
    assert [getattr(schemas.fetch(i), "text", None) for i in (7, 8, 9)] == ["the registry's", "of an archive", None]
    archive = FileSchemas(Registry(), framed=False)  # type: ignore[arg-type]
    archive.offer([RegistrySchema(7, "AVRO", "of the archive")])
    assert getattr(archive.fetch(7), "text", None) == "of the archive", "it stands in for a registry that may be gone"
