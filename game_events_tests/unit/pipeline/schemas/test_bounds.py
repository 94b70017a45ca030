"""Bounds of what schemas may cost: ids that nobody knows, columns of all schemas together."""

import json

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap, kept_columns
from game_events.decoding.decoder import BatchDecoder, DecodePlan, RecentlyUsed
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events_tests.support.decoding.format_helpers import framed

TIME = {"type": "long", "logicalType": "timestamp-micros"}


def wide(prefix, number):
    return record(prefix, *(f"{prefix}{n}" for n in range(number)))


def record(prefix, *names):
    fields = [{"name": name, "type": TIME if name == "event_timestamp" else "string"} for name in names]
    return json.dumps({"type": "record", "name": f"R{prefix}", "fields": fields})


class Registry(SchemaLookup):
    """Knows some ids, and counts what it was asked."""

    url = "http://registry"

    def __init__(self, **texts):
        self.texts = {int(name.removeprefix("id")): text for name, text in texts.items()}
        self.asked = []

    def fetch(self, schema_id):
        self.asked.append(schema_id)
        return RegistrySchema(schema_id, "AVRO", self.texts[schema_id]) if schema_id in self.texts else None


@pytest.fixture
def make(tmp_path):
    def make(registry, **limits):
        return SchemaCatalog(registry, Lakehouse(str(tmp_path)), **limits)

    return make


def test_a_flood_of_unknown_ids_is_asked_about_up_to_a_bound_and_known_ones_are_found(make):
    registry = Registry(id7='"string"')
    catalog = make(registry, max_unknown_ids=5)
    flood = {(n, (0,)) for n in range(1, 100)}
    looked_at, missed = catalog.look_up(flood, 5)
    assert (sorted(i for i, _ in looked_at), missed) == ([1, 2, 3, 4, 5], 5)
    assert registry.asked == [1, 2, 3, 4, 5]
    looked_at, missed = catalog.look_up(flood, 3)  # what was asked about a moment ago needs no asking
    assert (sorted(i for i, _ in looked_at), missed) == ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    assert registry.asked == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(("unknown_s", "known", "asked"), [(3600, {1}, [1]), (0, set(), [1, 1])])
def test_unknown_ids_are_forgotten_after_a_while(make, monkeypatch, unknown_s, known, asked):
    monkeypatch.setattr("game_events.pipeline.schemas.catalog.UNKNOWN_S", unknown_s)
    registry = Registry()
    store = make(registry)
    assert store.compiled(1) is None
    assert store.unknown_ids() == known
    assert store.compiled(1) is None
    assert registry.asked == asked


def test_workers_report_no_more_ids_than_the_driver_asks_about():
    values = pa.array([framed(b"x", n) for n in range(2_000)], pa.binary())
    found = BatchDecoder(DecodePlan(max_unknown_ids=10)).decode(values).unknown
    assert sorted(i for i, _ in found) == list(range(11))
    decoded = BatchDecoder(DecodePlan(rest="too many")).decode(values)
    assert not decoded.unknown
    assert {(r.reason, r.detail) for r in decoded.rejected} == {(Reason.UNKNOWN_SCHEMA, "too many")}
    assert sum(len(r.rows) for r in decoded.rejected) == 2_000


def test_a_type_whose_columns_are_too_many_harms_only_its_own_records(make):
    registry = Registry(id1=wide("a", 60), id2=wide("b", 60), id3=wide("c", 40), id4=wide("a", 60))
    plan = make(registry, max_columns=100).plan(ColumnMap(), [(n, ()) for n in (1, 2, 3, 4)])
    assert plan.types == {(1, ()), (3, ()), (4, ())}
    ((key, (reason, detail)),) = plan.rejected.items()
    assert (key, reason) == ((2, ()), Reason.BAD_SCHEMA)
    assert "60 new columns beside the 60 that there are" in detail
    assert "GAME_EVENTS_MAX_COLUMNS" in detail


def test_columns_that_are_there_stay_when_the_bound_is_lower(make):
    registry = Registry(id1=wide("a", 60), id2=wide("b", 1))
    columns = make(registry).plan(ColumnMap(), [(1, ())]).columns
    plan = make(registry, max_columns=10).plan(columns, [(1, ()), (2, ())])
    assert plan.types == {(1, ())}
    assert set(plan.rejected) == {(2, ())}


def test_a_version_whose_two_fields_have_one_column_each_by_itself_harms_only_its_own_records(make):
    """Both names are the key's, and records of the versions that have one of them came first."""
    registry = Registry(id1=record("p", "gamer_id"), id2=record("p", "GAMER_ID"), id3=record("p", "gamer_id", "GAMER_ID"))
    catalog = make(registry, kept=kept_columns(load_settings()))
    columns = catalog.plan(ColumnMap(), [(1, ()), (2, ())]).columns
    plan = catalog.plan(columns, [(n, ()) for n in (1, 2, 3)])
    assert plan.types == {(1, ()), (2, ())}
    detail = "schema id 3: fields have one column in other versions: gamer_id and GAMER_ID (gamer_id)"
    assert plan.rejected == {(3, ()): (Reason.BAD_SCHEMA, detail)}


def test_an_id_of_eight_bytes_is_named_as_such(make):
    ((reason, detail),) = make(Registry()).plan(ColumnMap(), [(0, (0,))]).rejected.values()
    assert reason is Reason.UNKNOWN_SCHEMA
    assert "no schema with id 0, which no registry issues: are these ids of 8 bytes" in detail


def test_schemas_that_were_not_used_for_long_are_dropped_and_made_again(make, monkeypatch):
    registry = Registry(**{f"id{n}": record(f"r{n}", "a", "b") for n in range(1, 9)})
    catalog = make(registry)
    size = len(registry.texts[1]) + 100
    monkeypatch.setattr(catalog, "_used", RecentlyUsed(5 * size))
    wanted = [(n, ()) for n in range(1, 9)]
    plan = catalog.plan(ColumnMap(), wanted)
    assert plan.types == set(wanted)
    kept = [n for n, known in catalog._known.items() if known.compiled is not None]
    assert 1 <= len(kept) < 5
    assert kept[-1] == 8
    # Not archived yet: a text is kept until it is.
    assert all(known.schema is not None for known in catalog._known.values())
    assert catalog.archive(range(1, 9)) == list(range(1, 9))
    assert catalog.plan(ColumnMap(), wanted) == plan
    assert sum(known.schema is not None for known in catalog._known.values()) < 5
    assert catalog.comments(1).of("Rr1") == ""
    assert registry.asked == list(range(1, 9)), "the registry is asked once"


def test_a_process_that_begins_keeps_no_text_of_the_archive(make):
    registry = Registry(id1=record("r", "a"), id2=record("s", "a"))
    first = make(registry)
    first.plan(ColumnMap(), [(1, ()), (2, ())])
    first.archive([1, 2])
    catalog = make(registry)
    assert [known.schema for known in catalog._known.values()] == [None, None]
    registry.fetch = None  # the archive is not read either while the registry has the same text
    monkey = Registry(id1=registry.texts[1])
    catalog._registry, catalog._archive.read = monkey, None
    assert catalog.plan(ColumnMap(), [(1, ())]).types == {(1, ())}


def test_a_worker_drops_decoders_that_were_not_used_for_long(make, monkeypatch):
    registry = Registry(**{f"id{n}": '"string"' for n in range(1, 9)})
    plan = make(registry).plan(ColumnMap(), [(n, ()) for n in range(1, 9)])
    decoder = BatchDecoder(plan)
    monkeypatch.setattr(decoder, "_used", RecentlyUsed(20))
    values = pa.array([framed(b"\x02a", n) for n in range(1, 9)] * 2, pa.binary())
    for _ in range(2):
        assert sum(len(rows) for rows, _, _, _ in decoder.decode(values).good) == 16
        assert len(decoder._decoders) == 2


def test_a_text_that_is_too_long_is_refused_and_says_so(make):
    text = json.dumps({"type": "string", "doc": "x" * 2**22})
    ((reason, detail),) = make(Registry(id1=text)).plan(ColumnMap(), [(1, ())]).rejected.values()
    assert (reason, detail) == (Reason.BAD_SCHEMA, "schema id 1 does not compile: one text is longer than 4 MiB")
