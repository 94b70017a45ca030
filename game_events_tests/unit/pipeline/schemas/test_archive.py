"""The table `schemas` holds each id once, whoever adds it, and one meaning of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltalake import DeltaTable

from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import SCHEMAS, Lakehouse
from game_events.pipeline.schemas.archive import SchemaArchive


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def schema(number, text="message M {}"):
    return RegistrySchema(number, "PROTOBUF", text, (("other.proto", "message O {}"),))


def ids(lakehouse):
    table = lakehouse.table(SCHEMAS)
    return sorted(read_arrow(table, table.open()).column("schema_id").to_pylist())


@pytest.mark.parametrize("attempt", range(3))
def test_runs_that_meet_the_same_schemas_at_the_same_moment_archive_each_once(tmp_path, attempt):  # noqa: ARG001 - a race
    lakehouse = Lakehouse(str(tmp_path))
    together = threading.Barrier(4)

    def meet(first):
        archive = SchemaArchive(lakehouse)
        together.wait()
        return [set(archive.add([schema(n) for n in range(first, first + 3)], "r")) for first in (first, first + 3)]

    with ThreadPoolExecutor(4) as pool:
        added = [batch for batches in pool.map(meet, (1, 2, 3, 4)) for batch in batches]
    assert ids(lakehouse) == list(range(1, 10))
    assert sum(map(len, added)) == 9
    assert SchemaArchive(lakehouse).read() == {n: schema(n) for n in range(1, 10)}


def test_a_second_look_adds_nothing_and_another_meaning_is_refused(tmp_path):
    lakehouse = Lakehouse(str(tmp_path))
    archive = SchemaArchive(lakehouse)
    assert set(archive.add([schema(1)], "r")) == {1}
    assert archive.add([schema(1)], "r") == {}
    with pytest.raises(DataError, match="REGISTRY_CHANGED: r gives schema id 1 another meaning"):
        archive.add([schema(2), schema(1, "message N {}")], "r")
    assert ids(lakehouse) == [1]
    assert DeltaTable(lakehouse.table(SCHEMAS).uri).version() == 0
