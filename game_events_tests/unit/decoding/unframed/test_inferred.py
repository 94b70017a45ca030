"""JSON without a schema: every value is in its column or rescued, columns grow, and never narrow."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import MAX_NAMED_TYPES
from game_events.decoding.frame import Reason
from game_events.decoding.unframed.inferred import RESCUED, TopicDocuments, inferred_id, known_type, planned
from game_events_tests.support.decoding.topics import catalog_of, decoded, reasons_of, records, rows_of

SCHEMALESS = {"events": {"format": "json"}}


@pytest.fixture
def world(tmp_path):
    """Decodes documents, each batch with the columns that the ones before left; a new process for each."""
    columns = ColumnMap()

    def send(*documents, **settings):
        nonlocal columns
        chosen = {"decoding": SCHEMALESS} | settings
        catalog = catalog_of(tmp_path, **chosen)
        values = [d if isinstance(d, bytes) else json.dumps(d).encode() for d in documents]
        batch, after, attempts = decoded(catalog, records(values), columns)
        assert all(after.columns[name] == kind for name, kind in columns.columns.items() if not kind.num_fields)
        columns = after
        send.attempts = attempts
        send.columns = after
        send.batch = batch
        return [row for _, (_, row) in sorted(rows_of(batch).items())]

    return send


def test_the_first_type_stays_and_what_does_not_fit_is_kept_as_json(world):
    assert world({"level": 1, "name": "a", "on": True}) == [{"level": 1, "name": "a", "on": True}]
    assert world({"level": "x", "name": 7, "on": None}) == [{RESCUED: '{"level":"x","name":7}'}]
    assert world({"level": 1.5}, {"level": 2.0}, {"level": 2**70}) == [
        {RESCUED: '{"level":1.5}'},
        {"level": 2},
        {RESCUED: '{"level":1180591620717411303424}'},
    ]
    assert world.batch.rescued == {"events": 2}


def test_computed_columns_are_there_before_any_other_type_has_brought_them(tmp_path):
    computed = {"entity": "'rummy'", "time": "timestamp_millis(ts)"}
    catalog = catalog_of(tmp_path, decoding=SCHEMALESS, **computed)
    _, columns, _ = decoded(catalog, records([b'{"ts": 1}']))
    assert set(columns.columns) == {"game_name", "event_timestamp", "ts", RESCUED}


def test_integers_fit_a_double_unless_they_would_be_rounded(world):
    assert world({"price": 1}, {"price": 2.5}) == [{"price": 1.0}, {"price": 2.5}], "before there is a column both are numbers"
    assert world({"price": 3}, {"price": 2**53 + 1}) == [{"price": 3.0}, {RESCUED: f'{{"price":{2**53 + 1}}}'}]


def test_a_batch_with_new_members_is_decoded_once_more_and_one_without_is_not(world):
    world({"a": 1}, {"b": {"c": [{"d": 1}]}})
    assert world.attempts == 3, "the topic, then its members"
    world({"b": {"c": [{"e": "x"}]}})
    assert world.attempts == 3
    world({"a": 5, "b": {"c": [{"e": "y", "d": 2}]}})
    assert world.attempts == 2


def test_empty_values_have_a_column_once_something_is_in_them(world):
    assert world({"tags": [], "more": {}, "none": None}) == [{RESCUED: '{"tags":[],"more":{}}'}]
    assert world({"tags": ["a", None], "more": {"x": 1}}) == [{"tags": ["a", None], "more": {"x": 1}}]
    assert world({"tags": [], "more": {}}) == [{"tags": [], "more": {"x": None}}]


def test_a_list_with_one_element_that_does_not_fit_is_kept_as_a_whole(world):
    world({"items": [{"n": 1}], "path": [[1]]})
    assert world({"items": [{"n": 1}, {"n": "x"}], "path": [[1], 2]}) == [
        {RESCUED: '{"items":[{"n":1},{"n":"x"}],"path":[[1],2]}'}
    ]


def test_hints_choose_types_and_later_ones_make_columns_of_their_own(world):
    hints = {"level": "double", "shop.at": "timestamp", "code": "string"}
    entry = {"events": {"format": "json", "hints": hints}}
    (row,) = world({"level": 1, "shop": {"at": "2026-01-01T00:00:00Z"}, "code": "7"}, decoding=entry)
    assert (row["level"], row["shop"]["at"].year, row["code"]) == (1.0, 2026, "7")
    assert world({"shop": {"at": "soon"}}, decoding=entry) == [{"shop": {"at": None}, RESCUED: '{"shop":{"at":"soon"}}'}]
    other = {"events": {"format": "json", "hints": {"level": "string"}}}
    assert world({"level": "high"}, {"level": 2}, decoding=other) == [{"level__string": "high"}, {RESCUED: '{"level":2}'}]
    assert world({"level": 3}) == [{"level": 3.0}], "without the hint the first column again"


def test_columns_that_settings_name_hold_only_what_they_need_whatever_comes_first(world):
    stray = {"game_name": 5, "gamer_id": 7, "event_timestamp": "now"}
    assert world(stray) == [{"gamer_id": "7", RESCUED: '{"game_name":5,"event_timestamp":"now"}'}]
    (row,) = world({"game_name": "uno", "gamer_id": "ann", "event_timestamp": "2026-01-01T00:00:00Z"})
    assert (row["game_name"], row["gamer_id"], row["event_timestamp"].year) == ("uno", "ann", 2026)


def test_hostile_members_harm_only_themselves(world):
    deep = json.loads('{"a":' * 60 + "1" + "}" * 60)
    rows = world(
        {"ok": 1, "x" * 201: 2, "_rescued": "mine", "_kafka_offset": 5, "a.b": 1, "A.B": 2, "": 3, "x:json": 4, "x:plain": 5},
        {"ok": 2, "deep": deep},
        {"ok": 3, "#": 1, "~2": 2, ":": 3, "[array<struct>]": 4},
    )
    assert json.loads(rows[0][RESCUED]) == {"x" * 201: 2, RESCUED: "mine", "": 3}
    assert (rows[0]["field_kafka_offset"], rows[0]["a_b"], rows[0]["A_B__bigint"]) == (5, 1, 2)
    assert [row["ok"] for row in rows] == [1, 2, 3]
    assert world({"x:json": 6, "x:plain": 7, "~2": 8, "#": 9}) == [{"x:json": 6, "x:plain": 7, "~2": 8, "#": 9}]
    assert json.loads(rows[1][RESCUED]) == {"deep": deep}


def test_members_without_a_name_are_rescued_and_the_next_batch_is_decoded(world):
    assert world({"": {"x": 1}, "a": {"": 2, "b": 3}, "list": [{"": 4}]}) == [
        {"a": {"b": 3}, RESCUED: '{"":{"x":1},"a":{"":2},"list":[{"":4}]}'}
    ]
    assert world({"": {"x": 1}, "a": {"": {"y": 2}}}) == [{"a": {"b": None}, RESCUED: '{"":{"x":1},"a":{"":{"y":2}}}'}]


@pytest.mark.parametrize("name", ["a[array<struct>]", "a[array<struct>][struct]", "a[struct]"])
def test_a_name_like_the_path_of_a_list_is_another_place(world, name):
    document = {"a": [{"x": 1}], "a[array<struct>]": {"y": 2}, name: {"z": 3}}
    assert world(document) == [document]
    assert world(document) == [document], "as the columns' metadata say it"


def test_names_that_records_choose_leave_room_for_other_columns(world):
    flood = [{f"k{n}": n} for n in range(150)]
    rows = world({"ok": 1}, *flood, max_columns=1000)
    assert rows[0] == {"ok": 1}
    assert world.columns.width <= 101
    assert sum(RESCUED in row for row in rows) >= 50
    assert all(row.get(f"k{n}", json.loads(row.get(RESCUED, "{}")).get(f"k{n}")) == n for n, row in enumerate(rows[1:]))
    assert world({"new": 1}, {"ok": 2}, max_columns=1000) == [{RESCUED: '{"new":1}'}, {"ok": 2}]


def test_documents_that_are_no_objects_are_quarantined_with_what_was_tried(world):
    assert world(b"[1]", b'{"a": 1', b'{"a": 2}', b"\xff") == [{"a": 2}]
    found = reasons_of(world.batch)
    assert {at: why for at, (why, _) in found.items()} == {0: Reason.MALFORMED, 1: Reason.TRUNCATED, 3: Reason.BAD_UTF8}
    assert all("GAME_EVENTS_DECODING: json, without a schema" in detail for _, detail in found.values())


def test_a_member_names_the_type_if_it_is_a_legal_name(world):
    entry = {"events": {"format": "json", "type_field": "event"}}
    names = ["played", "Level Start", "x" * 201, "a\nb", "", " ", 7, None]
    world(*[{"event": name} for name in names], {"n": 1}, decoding=entry)
    found = [name for _, (name, _) in sorted(rows_of(world.batch).items())]
    assert found == ["played", "Level Start", *["events"] * 7]
    assert {schema_id for _, schema_id, _, _ in world.batch.good} == {None}


def test_of_very_many_types_the_most_frequent_are_told_apart(world):
    entry = {"events": {"format": "json", "type_field": "event"}}
    world(*[{"event": "often"}] * 3, *[{"event": f"e{n}"} for n in range(300)], decoding=entry)
    names = [name for name, _ in rows_of(world.batch).values()]
    assert (names.count("often"), len(set(names)), len(names)) == (3, MAX_NAMED_TYPES + 1, 303)


def test_two_topics_share_no_types(tmp_path):
    catalog = catalog_of(tmp_path, decoding={"a|b": {"format": "json"}})
    batch, columns, _ = decoded(catalog, records([b'{"id": 1}', b'{"id": "x"}'], topic=["a", "b"]))
    assert rows_of(batch) == {0: ("a", {"id": 1}), 1: ("b", {"id__string": "x"})}
    assert set(columns.columns) == {"id", "id__string", RESCUED}


NAMES = st.sampled_from(["a", "b", "a.b", "n:plain", "x:json", "Ä", "#", "~1"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
BATCHES = st.lists(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=4), min_size=1, max_size=4)


@given(BATCHES)
def test_column_and_rescued_together_are_the_document_and_columns_only_grow(tmp_path_factory, batches):
    columns = ColumnMap()
    folder = tmp_path_factory.mktemp("catalog")
    for documents in batches:
        catalog = catalog_of(folder, decoding=SCHEMALESS)
        batch, after, _ = decoded(catalog, records([json.dumps(d).encode() for d in documents]), columns)
        rows = rows_of(batch)
        assert reasons_of(batch) == {}
        before = known_type(columns, inferred_id("events"), {})
        kind = known_type(after, inferred_id("events"), {})
        assert planned(after, inferred_id("events"), None, TopicDocuments(), 10_000)[0].type == kind
        assert keeps(before, kind)
        names = top_names(after)
        for number, document in enumerate(documents):
            row = rows[number][1]
            rest = json.loads(row.pop(RESCUED, "{}"))
            whole = {name: row[column] for name, column in names.items() if column in row}
            assert same(whole, rest, document), (row, rest, document)
        columns = after


def top_names(columns):
    """Member at the top -> its column."""
    found = {}
    for key, name in columns.names.items():
        path = key.partition("#")[2].partition(":")[0]
        if key.startswith("json:events#") and "." not in path and name != RESCUED:
            identity = path.replace("~3", ":").replace("~2", "#").replace("~1", ".").replace("~0", "~")
            found[identity.removesuffix(":plain")] = name
    return found


def keeps(before, after):
    """Whether a type has all that one before had."""
    if before.kind != after.kind:
        return False
    if before.item is not None:
        return keeps(before.item, after.item)
    later = dict(after.fields)
    return all(name in later and keeps(inner, later[name]) for name, inner in before.fields)


def same(row, rest, document):
    """Whether a document is what a row and the rest have, NULLs and the names and order of values inside of others aside."""
    for name, value in document.items():
        if value is None:
            continue
        if isinstance(value, dict) and isinstance(row.get(name), dict):
            if leaves(value) != leaves(row[name]) + leaves(rest.get(name)):
                return False
        elif name in rest:
            if json.dumps(rest[name], sort_keys=True) != json.dumps(value, sort_keys=True) or name in row:
                return False
        elif leaves(row.get(name)) != leaves(value):
            return False
    return True


def leaves(value):
    """The values in a value that are not null, each with whether it is a boolean: 1 is 1.0, but not true."""
    if isinstance(value, dict):
        return sum(map(leaves, value.values()), Counter())
    if isinstance(value, list):
        return sum(map(leaves, value), Counter())
    return Counter() if value is None else Counter([(isinstance(value, bool), value)])


@pytest.mark.parametrize(
    ("row", "rest", "document"),
    [
        ({"a": 1}, {}, {"a": 2}),
        ({"a": 1}, {}, {"a": True}),
        ({}, {"a": 1}, {"a": True}),
        ({}, {"a": 1.0}, {"a": 1}),
        ({"a": float(2**53)}, {}, {"a": 2**53 + 1}),
        ({"a": 1}, {"a": 1}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {"c": "y"}}, {"a": {"b": 1, "c": "x"}}),
        ({"a": [1, 1, 2]}, {}, {"a": [1, 2, 2]}),
        ({"b": 1}, {}, {"a": 1}),
    ],
)
def test_the_comparison_above_tells_values_apart(row, rest, document):
    assert not same(row, rest, document)
    assert same({"a": 1.0, "b": {"x": None, "y": ["u", 2]}}, {"b": {"z": 3}}, {"a": 1, "b": {"p": [2, 3], "q": "u"}, "c": None})
