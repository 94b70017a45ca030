"""Tables that somebody else has altered: what commits of this project would break is refused before anything is written."""

from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.errors import DataError
from game_events.lakehouse.commits import commit as commits
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.table_properties import WRITABLE_FEATURES
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED, Lakehouse, gold_name, silver_name
from game_events.pipeline.bronze import load
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.checks.reconcile import RowCounts, reconcile
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.silver import refresh
from game_events.plugins.catalog.sql import TablesSql
from game_events.plugins.governance.commits import Erasure, ErasureState, erase_events
from game_events.plugins.governance.workers import PeopleToErase
from game_events_tests.support.altered_tables import altered, not_null, with_metadata
from game_events_tests.support.faults import at_commit
from game_events_tests.support.model.world import World
from game_events_tests.support.tables import SCHEMA, assert_nothing_left_over, data_files, numbers, plan

NESTED = pa.schema(
    [
        *SCHEMA,
        ("place", pa.struct([("x", pa.int64())])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.list_(pa.struct([("y", pa.int64())])))),
    ]
)
#: A feature that this project does not follow.
NEW = {"features": ["somethingNew"]}
#: A change that makes a column one of which the values would have to be made.
GENERATED = with_metadata("n", delta_generationExpression="1")
FOREIGN = [
    (
        {"features": ["rowTracking", "domainMetadata", "v2Checkpoint"], "reader": ["v2Checkpoint"]},
        "DROP FEATURE rowTracking",
    ),
    (
        {"features": ["typeWidening"], "reader": ["typeWidening"], "change": with_metadata("n", delta_typeChanges=[])},
        "column n was given a wider type",
    ),
    ({"features": ["allowColumnDefaults"], "change": with_metadata("s", CURRENT_DEFAULT="'a'")}, "ALTER COLUMN s DROP DEFAULT"),
    ({"features": ["identityColumns"]}, "DROP FEATURE identityColumns"),
    (NEW, "DROP FEATURE somethingNew"),
    ({"change": not_null("place")}, "ALTER COLUMN place DROP NOT NULL"),
    ({"change": not_null("place", "x")}, "ALTER COLUMN place.x DROP NOT NULL"),
    ({"change": not_null("tags", "element")}, "ALTER COLUMN tags.element DROP NOT NULL"),
    ({"change": not_null("counts", "value")}, "ALTER COLUMN counts.value DROP NOT NULL"),
    ({"change": not_null("counts", "value", "element", "y")}, "ALTER COLUMN counts.value.element.y DROP NOT NULL"),
    ({"change": with_metadata("s", delta_generationExpression="'a'")}, "column s is a generated column"),
    ({"change": with_metadata("n", delta_identity_start=1)}, "column n is an identity column"),
]
#: Features that need more than their name in the protocol.
_WITH = {"timestampNanos": ("timestampNtz", "timestampNanos")}
_OF_READERS = {"timestampNanos", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview"}


def ids(value):
    return value if isinstance(value, str) else ""


@pytest.fixture
def table(tmp_path):
    table = Lakehouse(str(tmp_path)).silver("uno")
    commit(rows(table, 0))
    return table


def rows(table, n, **options):
    """A plan that adds a row after so many commits."""
    found = pa.table({f.name: pa.array([n if f.name == "n" else None], f.type) for f in NESTED}, NESTED)
    return plan(table, [], n or None, n + 1, schema=NESTED, files=staged(table, found), **options)


@pytest.mark.parametrize(("how", "says"), FOREIGN, ids=ids)
def test_a_table_that_asks_for_what_these_commits_do_not_keep_is_refused_with_the_statement_that_takes_it_back(
    table, how, says
):
    altered(table, **how)
    before = data_files(table)
    with pytest.raises(DataError) as refused:
        table.open()
    said = str(refused.value)
    assert said.startswith(f"table {table.uri} was altered: ")
    assert says in said
    assert "nothing is written to the table" in said
    assert "delete the table: the next run makes it again" in said
    assert data_files(table) == before


@pytest.mark.parametrize("how", [how for how, _ in FOREIGN], ids=[says for _, says in FOREIGN])
def test_a_handle_that_is_kept_sees_a_later_alter(table, how):
    handles = TablePool()
    handles.open(table)
    altered(table, **how)
    with pytest.raises(DataError, match="was altered"):
        handles.open(table)


def test_an_alter_between_plan_and_commit_is_found_by_the_comparison_and_the_files_go(table):
    handle = table.open()
    planned = rows(table, 1, from_table=handle)
    altered(table, change=GENERATED)
    with pytest.raises(DataError, match="column n is a generated column"):
        commit(planned)
    assert_nothing_left_over(table)


def test_what_others_depend_on_is_dropped_last(table, monkeypatch):
    altered(table, features=["domainMetadata", "rowTracking"])
    handle = DeltaTable(table.uri)
    monkeypatch.setattr(DeltaTable, "table_uri", "s3://bucket/silver_uno_events/")
    with pytest.raises(DataError, match=r"DROP FEATURE rowTracking; ALTER TABLE .* DROP FEATURE domainMetadata"):
        table.writable(handle)


@pytest.mark.parametrize("asked", sorted(WRITABLE_FEATURES))
def test_a_feature_that_asks_nothing_of_these_commits_is_written_on(table, asked):
    features = _WITH.get(asked, (asked,))
    altered(table, features=features, reader=[name for name in features if name in _OF_READERS])
    commit(rows(table, 1))
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)
    commit(rows(table, 2, replace=True))
    assert numbers(table) == [2]


@pytest.mark.parametrize("version", range(2, 6))
def test_a_version_of_the_protocol_without_named_features_is_written_on(table, version):
    altered(table, actions=[{"protocol": {"minReaderVersion": 1, "minWriterVersion": version}}])
    commit(rows(table, 1))
    assert numbers(table) == [0, 1]


@pytest.mark.parametrize("version", [6, 8])
def test_a_version_of_the_protocol_that_is_not_written_here_is_refused(table, version):
    altered(table, actions=[{"protocol": {"minReaderVersion": 1, "minWriterVersion": version}}])
    with pytest.raises(DataError, match="was altered"):
        table.open()


def test_a_repartitioned_table_is_refused_and_the_unified_one_is_replaced_by_its_refresh(table, tmp_path):
    write_deltalake(
        table.uri, DeltaTable(table.uri).to_pyarrow_table(), mode="overwrite", partition_by=["s"], schema_mode="overwrite"
    )
    with pytest.raises(DataError, match="it is partitioned by s"):
        table.open()
    unified = Lakehouse(str(tmp_path)).table(UNIFIED)
    write_deltalake(unified.uri, pa.table({"n": [1], "s": ["a"]}), partition_by=["s"])
    assert unified.open() is not None


def test_a_table_that_only_grows_takes_rows_and_compactions_and_refuses_to_lose_rows(table):
    DeltaTable(table.uri).alter.set_table_properties({"delta.appendOnly": "true"})
    commit(rows(table, 1))
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)
    with pytest.raises(DataError, match=r"forbids to replace rows.*UNSET TBLPROPERTIES \('delta.appendOnly'\)"):
        commit(rows(table, 2, replace=True))
    with pytest.raises(DataError, match="forbids to replace rows"):
        commit(rows(table, 2, rewritten=frozenset(data_files(table))))
    assert numbers(table) == [0, 1]


@pytest.mark.parametrize("key", [gold_name("uno"), UNIFIED, "progress"])
def test_a_derived_table_that_only_grows_is_refused_at_once(tmp_path, key):
    table = Lakehouse(str(tmp_path)).table(key)
    commit(rows(table, 0))
    DeltaTable(table.uri).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DataError, match="forbids to replace rows"):
        table.open()


def test_an_altered_table_is_still_read(table):
    altered(table, change=GENERATED)
    assert table.open_to_read().version() == 1
    handles = TablePool()
    handles.publish(table, handles.open_to_read(table))
    with pytest.raises(DataError, match="was altered"):
        handles.open(table)
    root = table.uri.removesuffix(f"/{table.name}")
    with TablesSql(Lakehouse(root)) as sql:
        assert list(sql.query(f"SELECT n FROM {table.name}")[1]) == [(0,)]


# --- runs


@pytest.fixture
def world():
    world = World()
    world.records_come([("rummy", "a", 1, 1), ("spades", "b", 3, 1), ("uno", "c", 1, 1)])
    world.work()
    world.records_come([("rummy", "a", 5, 1), ("spades", "b", 5, 1)])
    yield world
    world.close()


@pytest.fixture
def jobs(monkeypatch):
    """How often rows were staged, and commits handed to the storage, by table."""
    counts = Counter()

    def counted(name, real):
        def call(*given, **how):
            counts[name] += 1
            return real(*given, **how)

        return call

    monkeypatch.setattr(load, "stage_micro_batch", counted("micro-batch", load.stage_micro_batch))
    monkeypatch.setattr(refresh, "stage_games", counted("games", refresh.stage_games))
    monkeypatch.setattr(commits, "write_version", counted("commit", commits.write_version))
    return counts


@pytest.mark.parametrize("key", [BRONZE, QUARANTINE])
@pytest.mark.parametrize(
    "how", [NEW, {"change": with_metadata("_batch", delta_generationExpression="1")}], ids=["new", "generated"]
)
def test_a_run_stops_at_an_altered_bronze_or_quarantine_before_any_job(world, jobs, key, how):
    world.records_come([("rummy", "a", 2, 1)])  # one for quarantine
    world.strictness = 1
    world.work()
    world.records_come([("rummy", "a", 7, 1)])
    jobs.clear()
    table = Lakehouse(world.folder).table(key)
    altered(table, **how)
    with pytest.raises(DataError, match=f"{key} was altered.*full-refresh bronze"):
        world.work()
    assert jobs == {}


def test_an_altered_silver_table_harms_its_game_alone(world, jobs):
    table = Lakehouse(world.folder).silver("rummy")
    altered(table, change=GENERATED)
    for number in range(2):
        report = world.work()
        assert {entry.game for entry in report.errors} == {"rummy"}
        assert all("column n is a generated column" in entry.error for entry in report.errors)
        assert jobs["micro-batch"] == 1, "bronze goes on, and no job is repeated"
        assert jobs["games"] == 1, f"run {number} stages the game of the altered table again"
    assert numbers(table) == [1]
    assert numbers(Lakehouse(world.folder).silver("spades")) == [3, 5]
    counts = RowCounts(Counter(rummy=2, spades=2, uno=1), Counter(rummy=1))
    found = reconcile(world.pipeline(), count=lambda *_: counts)
    assert (found.passed, found.silver, found.pending) == (True, 4, 1), found.summary()
    DeltaTable(table.uri).alter.set_table_properties({"delta.targetFileSize": "1mb"})
    altered(table, change=lambda schema: [f["metadata"].pop("delta.generationExpression", None) for f in schema["fields"]])
    assert not world.work().errors
    world.assert_settled()


def test_an_altered_gold_table_harms_its_game_alone(world):
    altered(Lakehouse(world.folder).gold("rummy"), **NEW)
    report = world.work()
    assert {entry.game for entry in report.errors} == {"rummy"}
    assert all("DROP FEATURE somethingNew" in entry.error for entry in report.errors)


@pytest.mark.parametrize("key", [UNIFIED, "progress"])
def test_an_altered_table_of_all_games_ends_its_step_with_the_sentence(world, key):
    altered(Lakehouse(world.folder).table(key), **NEW)
    with pytest.raises(DataError, match=f"{key} was altered.*or delete the table: the next run makes it again"):
        world.work()


def test_maintenance_of_an_altered_table_is_an_error_of_that_table(world):
    altered(Lakehouse(world.folder).silver("rummy"), change=GENERATED)
    report = RunReport()
    maintain(world.pipeline(), report)
    failed = {done.table: done.error for done in report.maintenance.values() if done.error}
    assert set(failed) == {silver_name("rummy")}
    assert "column n is a generated column" in failed[silver_name("rummy")]


@pytest.mark.parametrize("how", [{"properties": {"delta.appendOnly": "true"}}, NEW], ids=["append only", "new"])
def test_work_that_replaces_bronzes_rows_is_refused_before_anything_is_staged(world, jobs, how):
    altered(Lakehouse(world.folder).table(BRONZE), **how)
    before = data_files(Lakehouse(world.folder).table(BRONZE))
    pipeline = world.pipeline()
    state = ErasureState(
        pipeline, RunReport(), Erasure([], False), PeopleToErase("gamer_id", "game_name", frozenset("a")), frozenset()
    )
    works = (
        lambda: redecode(pipeline, RunReport()),
        lambda: replace_bronze(pipeline, RunReport()),
        lambda: erase_events(state),
    )
    for work in works:
        with pytest.raises(DataError, match=f"{BRONZE} was altered"):
            work()
    assert jobs == {}
    assert data_files(Lakehouse(world.folder).table(BRONZE)) == before


def test_work_that_marks_quarantines_rows_is_refused_before_anything_is_staged(world, jobs):
    world.records_come([("rummy", "a", 2, 1)])
    world.strictness = 1
    world.work(knows=())
    table = Lakehouse(world.folder).table(QUARANTINE)
    altered(table, properties={"delta.appendOnly": "true"})
    jobs.clear()
    pipeline = world.pipeline()
    for work in (lambda: replay(pipeline, RunReport(), ReplaySelection()), lambda: replace_bronze(pipeline, RunReport())):
        with pytest.raises(DataError, match=f"{QUARANTINE} was altered: delta.appendOnly forbids"):
            work()
    assert jobs == {}


def test_a_refusal_by_delta_rs_that_is_no_conflict_is_raised_as_what_it_is_and_once(table):
    handed = []

    def refused(*_, **__):
        handed.append(1)
        raise commits.CommitFailedError("Unsupported table features required: [SomethingNew]")

    with at_commit(refused), pytest.raises(DataError, match="nothing is visible: Unsupported table features"):
        commit(rows(table, 1))
    assert len(handed) == 1
    assert_nothing_left_over(table)
