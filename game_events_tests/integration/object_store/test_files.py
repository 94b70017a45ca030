"""Files of any size come whole to an object store and back."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.config.settings import Settings
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedFile, discard, file_system, staged
from game_events.lakehouse.maintenance import first_groups, outdated_files, renew
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.quarantine import ResetList, forget, keep, read_list
from game_events.sources.source import Partition
from game_events_tests.support.edge_values import earlier_release, handle_of
from game_events_tests.support.servers.object_store import ObjectStore
from game_events_tests.support.tables import put

SCHEMA = pa.schema([("n", pa.int64()), ("body", pa.binary())])


def test_a_file_of_many_parts_is_the_rows_that_were_written(tables_only: Settings, store: ObjectStore) -> None:
    table = Lakehouse.of(tables_only).table("silver_uno_events")
    rows = pa.table({"n": range(40), "body": [os.urandom(1_000_000) for _ in range(40)]}, schema=SCHEMA)
    (file,) = staged(table, rows)
    assert table.open() is None, "nothing is visible before the commit"
    landed = commit(Commit(table, SCHEMA, [file], expect_transactions={}, set_transactions={"batch": 1}, table_id=None))
    assert (landed.version, landed.rows) == (0, 40)
    handle = table.open()
    assert handle is not None
    assert handle.metadata().configuration["delta.checkpointInterval"] == "10"
    assert read_arrow(table, handle).equals(rows)
    with store.files().open_input_file(f"{table.uri.removeprefix('s3://')}/{file.path}") as source:
        assert pq.ParquetFile(source).read().equals(rows)


@pytest.mark.parametrize("files", [0, 3, 20_000])
def test_the_list_of_a_full_refresh_is_kept_whatever_its_length(files: int, tables_only: Settings) -> None:
    table = Lakehouse.of(tables_only).table("quarantine_events")
    ends = {Partition("topic", "its id", 0): 5}
    listed = ResetList(3, ends, [StagedFile("q", f"part-{n}.parquet", 1, 1, "{}") for n in range(files)])
    keep(table, 7, listed)
    assert read_list(table, 7) == listed
    forget(table, 7, [])
    assert read_list(table, 7) is None


def test_files_of_a_failed_commit_are_gone_and_deleting_them_again_is_no_error(tables_only: Settings) -> None:
    table = Lakehouse.of(tables_only).table("silver_uno_events")
    files = staged(table, pa.table({"n": [1], "body": [b"x"]}, schema=SCHEMA))
    discard(table, files)
    discard(table, files)
    system, prefix = file_system(table)
    assert system.get_file_info(prefix + files[0].path).type.name == "NotFound"


def test_files_of_an_earlier_release_are_renewed(tables_only: Settings) -> None:
    table = Lakehouse.of(tables_only).silver("uno")
    with earlier_release():
        for number in (1.0, float("nan")):
            put(table, {"f": [number]})
    handle = handle_of(table)
    (group,) = first_groups(outdated_files(handle))
    assert len(group) == 2
    renew(table, handle, group)
    renewed = handle_of(table)
    assert outdated_files(renewed) == []
    assert sorted(map(str, read_arrow(table, renewed).column("f").to_pylist())) == ["1.0", "nan"]
