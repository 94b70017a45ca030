"""Features of the setting come to tables whatever their log is like, and beside runs that commit at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline import maintenance
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import IncrementalMaintenance, maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events_tests.support.altered_tables import altered, without_statistics
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import SCHEMA, committed_files, forget_older, numbers, plan, put

ROWS = pa.table(
    {
        "n": pa.array([3, 4], pa.int64()),
        "at": pa.array(
            [datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, 4, 5, 6, 7, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
        "day": pa.array([datetime(2026, 1, 2, tzinfo=UTC).date()] * 2),
        "x": pa.array([1.5, None]),
        "_batch": pa.array([7, 8], pa.int64()),
    }
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return without_spark(tmp_path, table_features="rowTracking", every_version_h=1e-6, replaced_files_h=1e-6)


@pytest.fixture
def table(pipeline: Pipeline) -> Table:
    """A table without the features of the setting."""
    return replace(pipeline.lakehouse.silver("uno"), features=())


def parsed(table: Table) -> None:
    """The log has statistics as columns of a checkpoint alone, as engines write them that are told to."""
    properties = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "true"}
    DeltaTable(table.uri).alter.set_table_properties(properties)
    DeltaTable(table.uri).create_checkpoint()
    forget_older(table)


def both(table: Table) -> None:
    """A checkpoint has them in both forms."""
    DeltaTable(table.uri).alter.set_table_properties({"delta.checkpoint.writeStatsAsStruct": "true"})
    DeltaTable(table.uri).create_checkpoint()
    forget_older(table)


def none(table: Table) -> None:
    without_statistics(table)
    forget_older(table)


def unchanged(_: Table) -> None:
    """The log has its entries."""


def added(table: Table) -> list[dict[str, Any]]:
    """The files that the newest version adds."""
    entry = Path(table.uri, "_delta_log", f"{DeltaTable(table.uri).version():020}.json").read_text()
    return [action["add"] for action in map(json.loads, entry.splitlines()) if "add" in action]


@pytest.mark.parametrize("log", [unchanged, both, parsed, none])
def test_rows_get_numbers_and_files_keep_their_statistics_in_whatever_form_the_log_has_them(
    pipeline: Pipeline, table: Table, log: Callable[[Table], None]
) -> None:
    put(table, ROWS, info={BATCH_INFO: "1"})
    log(table)
    before = add_actions(table.open())
    enabled = pipeline.lakehouse.silver("uno")
    assert enable(enabled, enabled.open())
    (file,) = added(table)
    assert (file["baseRowId"], json.loads(file["stats"])["numRecords"]) == (0, 2)
    assert not any(key.endswith("_parsed") for key in file)
    after = add_actions(table.open())
    for name in before.column_names:
        if name.startswith(("min.", "max.", "null_count.", "num_records")):
            assert after.column(name).to_pylist() == before.column(name).to_pylist(), name
    put(enabled, ROWS, info={BATCH_INFO: "1"})
    assert added(table)[0]["baseRowId"] == 2
    assert numbers(table) == [3, 3, 4, 4]


def test_a_file_that_is_gone_and_whose_number_of_rows_nobody_knows_is_named(pipeline: Pipeline, table: Table) -> None:
    put(table, ROWS, info={BATCH_INFO: "1"})
    none(table)
    (path,) = committed_files(table)
    Path(table.uri, path).unlink()
    enabled = pipeline.lakehouse.silver("uno")
    with pytest.raises(DataError, match=f"{path} is gone or damaged"):
        enable(enabled, enabled.open())


def test_a_table_that_others_have_clustered_gets_features_though_its_older_files_lack_statistics(
    pipeline: Pipeline, table: Table
) -> None:
    put(table, ROWS, info={BATCH_INFO: "1"})
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns": [["more"]]}', "removed": False}
    altered(table, features=["clustering", "domainMetadata"], actions=[{"domainMetadata": domain}])
    enabled = pipeline.lakehouse.silver("uno")
    assert enable(enabled, enabled.open())
    assert added(table)[0]["baseRowId"] == 0


def test_a_table_that_could_not_be_written_with_a_feature_any_more_does_not_get_it(pipeline: Pipeline, table: Table) -> None:
    put(table, ROWS, info={BATCH_INFO: "1"})
    altered(table, features=["v2Checkpoint"], reader=["v2Checkpoint"])
    enabled = replace(pipeline.lakehouse.silver("uno"), features=("inCommitTimestamp", "rowTracking"))
    assert enable(enabled, enabled.open())
    assert not enable(enabled, enabled.open())
    put(enabled, ROWS, info={BATCH_INFO: "1"})
    features = DeltaTable(table.uri).protocol().writer_features
    assert {"inCommitTimestamp", "v2Checkpoint"} <= set(features)
    assert "rowTracking" not in features


# --- beside runs


@pytest.fixture
def busy(table: Table, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """So many commits come between the opening of the table and what maintenance changes of its features or properties."""
    commit(plan(table, [1], None, 1, info={BATCH_INFO: "1"}))
    left: list[int] = []

    def overtaken(usual: Callable[..., object]) -> Callable[..., object]:
        def first_another_commit(*arguments: Any) -> object:
            if left:
                before = left.pop()
                commit(plan(table, [before + 1], before, before + 1, info={BATCH_INFO: "1"}))
            return usual(*arguments)

        return first_another_commit

    def come(count: int) -> None:
        left.extend(range(count, 0, -1))

    monkeypatch.setattr(maintenance, "enable", overtaken(maintenance.enable))
    apply = type(table.retention).apply
    monkeypatch.setattr(type(table.retention), "apply", overtaken(apply))
    return come


def maintained(pipeline: Pipeline) -> TableMaintenance:
    report = RunReport()
    maintain(pipeline, report)
    return report.maintenance["silver_uno_events"]


def test_a_commit_that_comes_first_is_followed(pipeline: Pipeline, table: Table, busy: Callable[[int], None]) -> None:
    busy(2)
    done = maintained(pipeline)
    assert (done.error, done.skipped) == (None, None)
    assert table.open().metadata().configuration["delta.enableRowTracking"] == "true"
    assert numbers(table) == [1, 2, 3]


def test_commits_that_always_come_first_leave_the_table_for_the_next_time_and_words_say_so(
    pipeline: Pipeline, busy: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.lakehouse, "names", lambda: ["silver_uno_events"])
    busy(30)
    done = maintained(pipeline)
    assert done.error is None
    assert "concurrent runs commit first" in str(done.skipped)


def test_in_a_loop_such_a_table_is_due_again(pipeline: Pipeline, busy: Callable[[int], None]) -> None:
    loop = IncrementalMaintenance(pipeline.lakehouse)
    busy(30)
    done = loop._maintain("silver_uno_events")
    assert done.error is None
    assert "concurrent runs commit first" in str(done.skipped)
    assert loop._commits["silver_uno_events"] == 1


def test_a_change_that_delta_rs_refuses_for_good_is_an_error_and_not_called_a_conflict(
    pipeline: Pipeline, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, ROWS, info={BATCH_INFO: "1"})

    def refused(*_: object) -> bool:
        raise CommitFailedError("no such feature")

    monkeypatch.setattr(maintenance, "enable", refused)
    done = maintained(pipeline)
    assert done.skipped is None
    assert "no such feature" in str(done.error)


def test_numbers_given_to_new_rows_need_only_the_newest_entry(
    pipeline: Pipeline, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled = pipeline.lakehouse.silver("uno")
    commit(plan(table, [1], None, 1))
    enable(enabled, enabled.open())
    for n in range(2, 6):
        commit(plan(enabled, [n], n - 1, n))
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    files = staged(enabled, pa.table({f.name: [None] for f in wider}, wider))
    handle = enabled.open()
    read: list[int] = []
    read_bytes = Path.read_bytes

    def noted(path: Path) -> bytes:
        if path.suffix == ".json":
            read.append(int(path.stem))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    commit(plan(enabled, [6], 5, 6, from_table=handle))
    assert read == [handle.version()]
    read.clear()
    commit(plan(enabled, [], 6, 7, schema=wider, files=files))
    assert len(read) < 4, "columns were added in an entry without a number"
    numbered = [(file["baseRowId"], file["path"]) for file in added(table)]
    assert numbered == [(6, files[0].path)]
    DeltaTable(table.uri).create_checkpoint()
    forget_older(table)
    commit(plan(enabled, [8], 7, 8))
    assert [file["baseRowId"] for file in added(table)] == [7]
