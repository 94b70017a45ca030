"""Features that somebody else has given a table go on being true of what is written to it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.entries import read_state
from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.tables import UNIFIED, Lakehouse, Table, gold_name, paths, silver_name
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.altered_tables import altered, not_null, with_metadata
from game_events_tests.support.model.world import World
from game_events_tests.support.tables import SCHEMA, assert_nothing_left_over, numbers, plan

NUMBERED = {
    "features": ["rowTracking", "domainMetadata"],
    "properties": {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-1",
    },
}
TIMED = {"features": ["inCommitTimestamp"], "properties": {"delta.enableInCommitTimestamps": "true"}}


def clustered(column: str) -> dict[str, Any]:
    """By one column, as Spark's CLUSTER BY leaves it."""
    domain = {"domain": "delta.clustering", "configuration": json.dumps({"clusteringColumns": [[column]]}), "removed": False}
    return {"features": ["clustering", "domainMetadata"], "actions": [{"domainMetadata": domain}]}


FOLLOWED: Mapping[str, Mapping[str, Any]] = {
    "row tracking": NUMBERED,
    "times in commits": TIMED,
    "clustering": clustered("n"),
    "domains": {"features": ["domainMetadata"]},
    "vacuum": {"features": ["vacuumProtocolCheck"], "reader": ["vacuumProtocolCheck"]},
    "type widening": {
        "features": ["typeWidening"],
        "reader": ["typeWidening"],
        "properties": {"delta.enableTypeWidening": "true"},
    },
    "defaults": {"features": ["allowColumnDefaults"]},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """An empty table."""
    table = Lakehouse(str(tmp_path)).silver("uno")
    commit(plan(table, [], None, 1))
    return table


def entry(table: Table, version: int) -> list[dict[str, Any]]:
    """The actions of a version."""
    return [json.loads(line) for line in Path(table.uri, "_delta_log", f"{version:020}.json").read_text().splitlines()]


def added(table: Table, version: int) -> list[dict[str, Any]]:
    """The files that a version added."""
    return [action["add"] for action in entry(table, version) if "add" in action]


@pytest.mark.parametrize("name", FOLLOWED)
def test_everything_this_project_writes_goes_on_and_delta_rs_reads_it(table: Table, name: str) -> None:
    commit(plan(table, [1], 1, 2))
    if name == "row tracking":
        numbered(table)
    else:
        altered(table, **FOLLOWED[name])
    commit(plan(table, [2], 2, 3))
    wider = pa.schema([*SCHEMA, ("at", pa.timestamp("us")), ("place", pa.struct([("x", pa.int64())]))])
    more = pa.table({"n": [3], "s": ["3"], "at": [None], "place": [{"x": 1}]}, wider)
    commit(plan(table, [], 3, 4, schema=wider, files=staged(table, more), description_now="what it is"))
    wider = wider.set(3, pa.field("place", pa.struct([("x", pa.int64()), ("y", pa.int64())])))
    commit(plan(table, [], 4, 5, schema=wider, files=staged(table, pa.table({f.name: [None] for f in wider}, wider))))
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)
    assert table.retention.apply(table.key, table.open()) is False, "they are set already"
    table.open().create_checkpoint()
    assert sorted(n or 0 for n in numbers(table)) == [0, 1, 2, 3]
    commit(plan(table, [9], 5, 6, replace=True, reshape=True))
    assert numbers(table) == [9]
    handle = DeltaTable(table.uri)
    assert [f.name for f in handle.schema().fields] == ["n", "s"]
    assert handle.metadata().description == "what it is"
    assert {"inCommitTimestamp", "rowTracking", "clustering"} & set(FOLLOWED[name]["features"]) <= set(
        handle.protocol().writer_features
    )
    assert_all_versions_read(table)


def assert_all_versions_read(table: Table) -> None:
    for version in range(DeltaTable(table.uri).version() + 1):
        DeltaTable(table.uri, version=version).schema()


def numbered(table: Table, how: Mapping[str, Any] = NUMBERED) -> None:
    """Row tracking as Spark sets it: the files that are there are added again, with numbers."""
    handle = DeltaTable(table.uri)
    version = handle.version() + 1
    again = [
        {"add": {**action["add"], "dataChange": False}} for v in range(version) for action in entry(table, v) if "add" in action
    ]
    next_row = 0
    for action in again:
        action["add"] |= {"baseRowId": next_row, "defaultRowCommitVersion": version}
        next_row += json.loads(action["add"]["stats"])["numRecords"]
    mark = {"domain": "delta.rowTracking", "configuration": json.dumps({"rowIdHighWaterMark": next_row - 1}), "removed": False}
    by = clustered(handle.schema().fields[-1].name)["actions"] if "clustering" in how["features"] else ()
    domains = [{"domainMetadata": mark}, *by]
    altered(table, **how, actions=[*again, *domains])


def row_ids(
    table: Table, columns: Sequence[str] = ("_row-id-col-1", "_row-commit-version-col-1")
) -> dict[int, tuple[int, int]]:
    """Number in a row -> its stable id and version, as the protocol says that readers find them."""

    handle = DeltaTable(table.uri)
    state = read_state(table.uri, handle.version())
    found = {}
    for path in paths(handle):
        base, since = state.files[path]
        assert base is not None and since is not None, path
        rows = pq.read_table(Path(table.uri, path), partitioning=None).to_pylist()
        for place, row in enumerate(rows):
            own, version = map(row.get, columns)
            found[row["n"]] = (base + place if own is None else own, since if version is None else version)
    return found


def test_each_row_has_a_number_of_its_own_that_compaction_keeps(table: Table) -> None:
    commit(plan(table, [1, 2], 1, 2))
    numbered(table)
    first = row_ids(table)
    commit(plan(table, [3, 4], 2, 3))
    commit(plan(table, [5], 3, 4))
    before = row_ids(table)
    assert first.items() <= before.items()
    assert len({number for number, _ in before.values()}) == 5
    assert {n: version for n, (_, version) in before.items()} == {1: 2, 2: 2, 3: 3, 4: 3, 5: 4}
    (group,) = small_files(table, table.open(), FULL_GOAL)
    join_files(table, table.open(), group, ["s"])
    assert row_ids(table) == before
    version = DeltaTable(table.uri).version()
    assert entry(table, version)[0]["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "true"}
    assert all("baseRowId" in action["remove"] for action in entry(table, version) if "remove" in action)
    table.open().create_checkpoint()
    commit(plan(table, [6], 4, 5))
    (group,) = small_files(table, table.open(), FULL_GOAL)
    join_files(table, table.open(), group)
    after = row_ids(table)
    assert before.items() <= after.items(), "also those that were kept once already"
    assert after[6][0] > max(number for number, _ in before.values()), "no number is used twice, after a checkpoint either"
    assert set(json.loads(added(table, DeltaTable(table.uri).version())[0]["stats"])["nullCount"]) == {"n", "s"}


def test_replaced_rows_get_new_numbers_and_the_entry_says_so(table: Table) -> None:
    commit(plan(table, [1, 2], 1, 2))
    numbered(table)
    before = row_ids(table)
    commit(plan(table, [1, 2], 2, 3, replace=True))
    version = DeltaTable(table.uri).version()
    assert entry(table, version)[0]["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "false"}
    assert not set(row_ids(table).values()) & set(before.values())


def test_suspended_row_tracking_numbers_no_rows(table: Table) -> None:
    altered(table, features=["rowTracking", "domainMetadata"], properties={"delta.rowTrackingSuspended": "true"})
    commit(plan(table, [1], 1, 2))
    assert ["baseRowId" in file for file in added(table, 2)] == [False]


def test_times_in_commits_only_grow_also_where_the_clock_goes_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    altered(table, **TIMED)
    commit(plan(table, [1], 1, 2))
    monkeypatch.setattr("game_events.lakehouse.entries.now_ms", lambda: 1_000)
    commit(plan(table, [2], 2, 3))
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    commit(plan(table, [], 3, 4, schema=wider, files=staged(table, pa.table({f.name: [None] for f in wider}, wider))))
    times = [next(iter(entry(table, version)[0].values()))["inCommitTimestamp"] for version in range(1, 6)]
    assert times == sorted(set(times))
    assert all("commitInfo" in entry(table, version)[0] for version in range(6))


def test_a_table_that_is_clustered_by_a_column_without_statistics_is_not_written(table: Table) -> None:
    altered(table, **clustered("place"))
    with pytest.raises(DataError, match=r"clustered by place, of which new files have no statistics.*CLUSTER BY"):
        commit(plan(table, [1], 1, 2))
    assert_nothing_left_over(table)


def test_null_in_a_column_that_is_not_null_is_refused_by_name_and_place(table: Table) -> None:
    schema = pa.schema(
        [*SCHEMA, ("_kafka_topic", pa.string()), ("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())]
    )

    def rows(first: int | None) -> pa.Table:
        return pa.table(
            {
                "n": [7, first],
                "s": ["a", "b"],
                "_kafka_topic": ["t"] * 2,
                "_kafka_partition": [3] * 2,
                "_kafka_offset": [10, 11],
            },
            schema,
        )

    altered(table, change=not_null("n"))
    commit(plan(table, [], 1, 2, schema=schema, files=staged(table, rows(1))))
    with pytest.raises(DataError, match=r"1 new rows break NOT NULL of column n of the table, e.g. offset 11 of t\[3\]"):
        commit(plan(table, [], 2, 3, schema=schema, files=staged(table, rows(None))))
    without = pa.table({"s": ["x"]}, pa.schema([("s", pa.string())]))
    with pytest.raises(DataError, match=r"1 new rows break NOT NULL of column n"):
        commit(plan(table, [], 2, 3, schema=without.schema, files=staged(table, without)))
    assert_nothing_left_over(table)
    assert numbers(table) == [1, 7]
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)
    commit(plan(table, [4], 2, 3, replace=True, reshape=True))
    handle = DeltaTable(table.uri)
    assert [(f.name, f.nullable) for f in handle.schema().fields] == [("n", False), ("s", True)], "a full refresh keeps it"


@pytest.mark.parametrize(
    "how",
    [
        {"features": ["checkConstraints"], "properties": {"delta.constraints.few": "n < 3"}},
        {"change": with_metadata("n", delta_invariants='{"expression":{"expression":"n < 3"}}')},
    ],
    ids=["constraint", "invariant"],
)
def test_a_condition_that_cannot_be_evaluated_lets_no_row_in(
    table: Table, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_started() -> NoReturn:
        raise PySparkRuntimeError("no session")  # another test of this process may have started one

    monkeypatch.setattr(SparkSession, "active", not_started)
    altered(table, **how)
    with pytest.raises(DataError, match="Spark evaluates, and this process has not started it"):
        commit(plan(table, [1], 1, 2))
    assert_nothing_left_over(table)
    commit(plan(table, [], 1, 2))


def test_an_alter_between_staging_and_commit_is_followed(table: Table) -> None:
    handle = table.open()
    planned = plan(table, [1], 1, 2, from_table=handle)
    numbered(table)
    commit(planned)
    assert row_ids(table) == {1: (0, 2)}


def test_in_an_object_store_the_features_stay_refused_as_delta_rs_writes_there(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(table, **TIMED)
    handle = DeltaTable(table.uri)
    monkeypatch.setattr(DeltaTable, "table_uri", "s3://bucket/silver_uno_events/")
    with pytest.raises(DataError, match="the table feature inCommitTimestamp in an object store"):
        table.writable(handle)


def test_a_table_without_features_is_written_without_looking_at_its_log(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read_state", "_time_of", "completed"):
        monkeypatch.setattr(f"game_events.lakehouse.entries.{name}", None)
    monkeypatch.setattr("game_events.lakehouse.commits.log.completed", None)
    commit(plan(table, [1], 1, 2))
    assert numbers(table) == [1]


# --- runs


ALL = {
    "features": ["rowTracking", "domainMetadata", "inCommitTimestamp", "clustering"],
    "properties": {**NUMBERED["properties"], **TIMED["properties"]},
}
KEYS = ("bronze_events", "quarantine_events", silver_name("rummy"), gold_name("rummy"), UNIFIED, "progress")


@pytest.mark.parametrize("layout", ["tables", "partitioned"])
def test_runs_maintenance_and_replacements_go_on_with_every_feature_in_every_table(layout: str) -> None:
    world = World(layout)
    try:
        world.records_come([("rummy", "a", 1, 1), ("spades", "b", 3, 1), ("uno", "c", 1, 1)])
        world.work()
        names = KEYS if layout == "tables" else ("bronze_events", "silver_events", "gold_unified_player_agg")
        made = [table for table in map(Lakehouse(world.folder).table, names) if Path(table.uri).is_dir()]
        for table in made:
            numbered(table, ALL)
        world.records_come([("rummy", "a", 5, 1), ("rummy", "d", 6, 2), ("spades", "b", 5, 1)], newer=True)
        assert not world.work().errors
        report = RunReport()
        maintain(world.pipeline(), report)
        assert [done.error for done in report.maintenance.values() if done.error] == []
        world.records_come([("rummy", "a", 7, 1)])
        assert not world.work().errors
        world.assert_settled()
        for table in made:
            assert_followed(table)
    finally:
        world.close()


def assert_followed(table: Table) -> None:
    """Every entry since the features came has a later time, and numbers that no other row has had."""
    handle = DeltaTable(table.uri)
    assert {"rowTracking", "inCommitTimestamp", "clustering"} <= set(handle.protocol().writer_features or ())
    log = Path(table.uri, "_delta_log")
    entries = {
        version: entry(table, version) for version in range(handle.version() + 1) if Path(log, f"{version:020}.json").exists()
    }
    first = next(version for version, actions in entries.items() if any("protocol" in a for a in actions) and version)
    times = [entries[version][0]["commitInfo"]["inCommitTimestamp"] for version in entries if version >= first]
    assert times == sorted(set(times))
    files = {f["path"]: f for version in entries if version >= first for f in added(table, version)}
    taken = sorted((f["baseRowId"], f["baseRowId"] + json.loads(f["stats"])["numRecords"]) for f in files.values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken)), table.name
    state = read_state(table.uri, handle.version())
    assert state.next_row >= max((end for _, end in taken), default=0)
    assert len(state.clustering_columns) == 1
    assert state.files.keys() == set(paths(handle))


def test_a_game_whose_rows_break_a_constraint_fails_alone_and_goes_on_without_it() -> None:
    world = World()
    try:
        world.records_come([("rummy", "a", 1, 1), ("spades", "b", 3, 1), ("uno", "c", 1, 1)])
        world.work()
        table = Lakehouse(world.folder).silver("rummy")
        altered(table, change=not_null("_schema_guid"))
        world.records_come([("rummy", "a", 5, 1), ("spades", "b", 5, 1)])
        report = world.work()
        assert {e.game for e in report.errors} == {"rummy"}
        assert all("break NOT NULL of column _schema_guid of the table, e.g. offset " in e.error for e in report.errors)
        assert numbers(Lakehouse(world.folder).silver("spades")) == [3, 5]
        altered(table, change=lambda schema: [f.update(nullable=True) for f in schema["fields"]])
        assert not world.work().errors
        world.assert_settled()
    finally:
        world.close()


# --- the setting


WANTED = ("changeDataFeed", "inCommitTimestamp", "rowTracking")


def test_tables_get_the_features_of_the_setting_when_they_are_made_and_keep_their_rows(tmp_path: Path) -> None:
    table = replace(Lakehouse(str(tmp_path)).silver("uno"), features=WANTED)
    commit(plan(table, [1, 2], None, 1))
    commit(plan(table, [3], 1, 2))
    assert_turned_on(table)
    assert numbers(table) == [1, 2, 3]
    assert {n: number for n, (number, _) in numbered_rows(table).items()} == {1: 0, 2: 1, 3: 2}
    assert DeltaTable(table.uri).version() == 2, "one entry for all of them"


@pytest.mark.parametrize("checkpointed", [False, True])
def test_maintenance_gives_them_to_an_older_table_once(table: Table, *, checkpointed: bool) -> None:
    commit(plan(table, [1, 2], 1, 2))
    if checkpointed:
        DeltaTable(table.uri).create_checkpoint()
    wanted = replace(table, features=WANTED)
    assert enable(wanted, wanted.open()) is True
    assert enable(wanted, wanted.open()) is False
    assert_turned_on(table)
    commit(plan(table, [3], 2, 3))
    compacted(wanted)
    assert {n: number for n, (number, _) in numbered_rows(table).items()} == {1: 0, 2: 1, 3: 2}
    assert numbers(table) == [1, 2, 3]
    properties = DeltaTable(table.uri).metadata().configuration
    assert properties["delta.inCommitTimestampEnablementVersion"] == "2"
    assert (
        int(properties["delta.inCommitTimestampEnablementTimestamp"]) == entry(table, 2)[0]["commitInfo"]["inCommitTimestamp"]
    )


def test_a_table_that_gets_its_times_later_keeps_its_other_features(table: Table) -> None:
    altered(table, features=["checkConstraints", "timestampNtz"], reader=["timestampNtz"])
    wanted = replace(table, features=("inCommitTimestamp",))
    enable(wanted, wanted.open())
    protocol = DeltaTable(table.uri).protocol()
    assert set(protocol.writer_features) == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "timestampNtz",
        "inCommitTimestamp",
    }
    assert protocol.reader_features == ["timestampNtz"]


def test_runs_and_maintenance_go_on_with_the_setting() -> None:
    world = World()
    try:
        world.records_come([("rummy", "a", 1, 1), ("spades", "b", 3, 1), ("uno", "c", 1, 1)])
        world.work()
        pipeline = world.pipeline()
        pipeline.lakehouse.features = WANTED
        report = RunReport()
        maintain(pipeline, report)
        assert [done.error for done in report.maintenance.values() if done.error] == []
        world.records_come([("rummy", "a", 5, 1), ("spades", "b", 5, 1)], newer=True)
        assert not world.work().errors
        world.assert_settled()
        for key in ("bronze_events", silver_name("rummy"), gold_name("rummy"), UNIFIED):
            assert_turned_on(Lakehouse(world.folder).table(key))
        assert not DeltaTable(Lakehouse(world.folder).table("progress").uri).protocol().writer_features
    finally:
        world.close()


def assert_turned_on(table: Table) -> None:
    """All features of the setting are on, and of readers nothing is asked."""
    handle = DeltaTable(table.uri)
    assert {*WANTED, "domainMetadata"} <= set(handle.protocol().writer_features or ())
    assert handle.protocol().min_reader_version == 1
    on = ("enableChangeDataFeed", "enableInCommitTimestamps", "enableRowTracking")
    assert all(handle.metadata().configuration[f"delta.{key}"] == "true" for key in on)


def compacted(table: Table) -> None:
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)


def numbered_rows(table: Table) -> dict[int, tuple[int, int]]:
    """As `row_ids`, by the names of the columns that the table has."""
    names = DeltaTable(table.uri).metadata().configuration
    return row_ids(table, [names[f"delta.rowTracking.materialized{what}ColumnName"] for what in ("RowId", "RowCommitVersion")])
