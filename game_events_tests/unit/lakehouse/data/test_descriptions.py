"""Comments, owners and tags in the tables' own metadata."""

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from game_events.config.settings import load_settings
from game_events.lakehouse import system_tables
from game_events.lakehouse.data.columns import (
    MAX_TABLE_CHARS,
    OWN_COLUMNS,
    QUARANTINE_COLUMNS,
    comments_of,
    described,
    own_comments,
    owners_of,
    tags_of,
    with_comments,
)
from game_events.lakehouse.table_properties import FORMAT, format_of
from game_events.lakehouse.tables import Labels, Lakehouse, Table
from game_events.pipeline.gold.plan import commented, player_agg
from game_events.pipeline.schemas import archive
from game_events.plugins.export.tables import DELIVERIES, failed_calls_schema, planned_schema
from game_events.plugins.files import source as log
from game_events.plugins.governance import erased_people as worker
from game_events_tests.support.tables import put

SCHEMA = pa.schema(
    [
        pa.field("game", pa.string(), metadata={"game_events.fields": '{"m#1:string":"game"}'}),
        pa.field("place", pa.struct([pa.field("city", pa.string())])),
        pa.field("amount", pa.decimal128(20, 0)),
        pa.field("_batch", pa.int64()),
    ]
)


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def add(table, schema, number, **more):
    """A commit of one row."""
    data = pa.Table.from_pylist([{"_batch": number}], schema=schema)
    return put(table, data, {"batch": number}, expect_transactions={"batch": number - 1 or None}, **more)


def said(handle):
    return comments_of(pa.schema(handle.schema()))


def test_comments_come_with_a_table_follow_newer_schemas_and_cost_no_commit_when_nothing_changes(lakehouse):
    table = lakehouse.table("silver_a_events")
    first = with_comments(SCHEMA, {"game": ("the game", 1), "place": ("where", 1)})
    handle = add(table, first, 1, description="about a")
    own = {"_batch": "Number of the commit of bronze_events that brought the row"}
    assert (handle.version(), said(handle)) == (0, {"game": "the game", "place": "where"} | own)
    assert (handle.metadata().name, handle.metadata().description) == ("silver_a_events", "about a")
    assert add(table, first, 2).version() == 1
    # A newer schema words one otherwise, describes another, and brings a column: evolved, described, then the rows.
    newer = with_comments(
        SCHEMA.append(pa.field("level", pa.int64())), {"game": ("which game", 7), "amount": ("how much", 7), "level": ("up", 7)}
    )
    handle = add(table, newer, 3)
    now = {"game": "which game", "place": "where", "amount": "how much", "level": "up"} | own
    assert (handle.version(), said(handle)) == (1 + 4, now)
    # Rows of older versions and of the newer one, in turn: nobody takes the comment back, and nothing is committed for it.
    for number, schema in enumerate((first, newer, first, SCHEMA), start=4):
        handle = add(table, schema, number)
    assert (handle.version(), said(handle)) == (9, now)
    # What else the metadata holds is as it was.
    assert handle.schema().fields[0].metadata["game_events.fields"] == '{"m#1:string":"game"}'
    assert format_of(handle) == FORMAT
    assert handle.transaction_version("batch") == 7


def test_a_table_from_before_gets_its_comments_in_one_commit(lakehouse):
    table = lakehouse.table("quarantine_events")
    first = CommitProperties(app_transactions=[Transaction("batch", 1)])
    write_deltalake(table.uri, pa.Table.from_pylist([{"_batch": 1}], schema=SCHEMA), commit_properties=first)
    assert said(table.open()) == {}
    handle = add(table, with_comments(SCHEMA, {"game": ("the game", 1), "place": ("where", 2)}), 2)
    assert handle.version() == 2
    assert set(said(handle)) == {"game", "place", "_batch"}


def test_owners_and_tags_are_the_tables_own_and_stay_where_the_settings_say_nothing(tmp_path, lakehouse):
    labels = Labels(("team:data", "a@example.com"), {"all": {"domain": "games", "pii": "yes"}, "gold": {"pii": "no"}})
    mine = Lakehouse(str(tmp_path), labels=labels)
    handle = add(mine.table("silver_a_events"), SCHEMA, 1)
    assert (owners_of(handle), tags_of(handle)) == (["team:data", "a@example.com"], {"domain": "games", "pii": "yes"})
    # Columns taken over from another table do not bring that table's labels.
    gold = add(mine.table("gold_a_player_agg"), pa.schema(handle.schema()), 1)
    assert (owners_of(gold), tags_of(gold)) == (["team:data", "a@example.com"], {"domain": "games", "pii": "no"})
    again = add(lakehouse.table("silver_a_events"), SCHEMA, 2)
    assert (again.version(), owners_of(again)) == (1, ["team:data", "a@example.com"])
    other = Lakehouse(str(tmp_path), labels=Labels(("team:other",)))
    changed = add(other.table("silver_a_events"), SCHEMA, 3)
    assert (changed.version(), owners_of(changed), tags_of(changed)["pii"]) == (3, ["team:other"], "yes")


def test_comments_that_cannot_be_written_keep_no_row_back(lakehouse, monkeypatch):
    table = lakehouse.table("silver_a_events")
    add(table, with_comments(SCHEMA, {"game": ("the game", 1)}), 1)

    def refuse(*_: object, **_options: object) -> None:
        raise CommitFailedError("a rival changed the metadata")

    with monkeypatch.context() as broken:
        broken.setattr("deltalake.table.TableAlterer.set_column_metadata", refuse)
        handle = add(table, with_comments(SCHEMA, {"game": ("another", 2)}), 2)
    assert (handle.transaction_version("batch"), said(handle)["game"]) == (2, "the game")
    assert said(add(table, with_comments(SCHEMA, {"game": ("another", 2)}), 3))["game"] == "another"


def test_comments_of_a_thousand_columns_have_a_limit_together():
    wide = pa.schema([pa.field(f"c{n}", pa.int64()) for n in range(1_000)])
    found = comments_of(with_comments(wide, {f"c{n}": ("x" * 500, 1) for n in range(1_000)}))
    assert sum(map(len, found.values())) == MAX_TABLE_CHARS


@pytest.mark.parametrize(
    ("key", "schema"),
    {
        "bronze_events": OWN_COLUMNS,
        "quarantine_events": QUARANTINE_COLUMNS,
        "schemas": archive.SCHEMA,
        "progress": system_tables.PROGRESS_SCHEMA,
        "event_log": system_tables.EVENT_LOG_SCHEMA,
        "erased_people": worker.SCHEMA,
        "source_files": log.SCHEMA,
        "export_calls": planned_schema("gamer_id"),
        "export_outcomes": DELIVERIES,
        "export_failed_calls": failed_calls_schema("gamer_id"),
    }.items(),
)
def test_every_column_of_the_projects_own_has_a_comment_and_no_other(key, schema):
    found = comments_of(described(Table(key, "", person="gamer_id"), schema))
    assert [name for name in schema.names if name not in found and name != "gamer_id"] == []
    assert [name for name in own_comments(key, "gamer_id") if name not in schema.names and not name.startswith("_")] == []


def test_golds_columns_say_what_they_mean_where_no_setting_gives_their_names_another_meaning():
    schema = pa.schema([("gamer_id", pa.string()), ("session_count", pa.int64()), ("min_timestamp", pa.int64())])
    table = Table("gold_uno_player_agg", "", person="gamer_id")

    def said(**columns):
        aggregate = player_agg(load_settings(gold_columns=columns))
        return comments_of(described(table, commented(aggregate, schema)))

    assert said() == {
        "gamer_id": "Whom the row is about",
        "session_count": "Number of events",
        "min_timestamp": "Time of the first event (UTC)",
    }
    own = said(session_count="count(DISTINCT session)", min_timestamp="min(created_at)")
    assert own == {"gamer_id": "Whom the row is about"}
