"""What an erasure, and runs beside it, look at before they commit. Tables made by hand: no service is needed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from game_events.errors import ConfigurationError, ConflictError, DataError
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import ERASED_PEOPLE
from game_events.pipeline.bronze import load as bronze_module
from game_events.pipeline.bronze.offsets import OffsetPlan
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.preflight import environment_checks
from game_events.plugins.governance import run as erasure
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.erased_people import add_people, hashes_of, read_erased_people, record_filter
from game_events.plugins.governance.run import resume
from game_events.sources.source import MicroBatch
from game_events.workers.results import StagedRows
from game_events_tests.support.altered_tables import altered, generated
from game_events_tests.support.offsets import seen, splits
from game_events_tests.support.pipelines import stage_by_hand, without_spark
from game_events_tests.support.tables import data_files, put, rows
from game_events_tests.support.worlds.waves import at_point

KEY = "a key of the tests, long enough"
TOPIC, ID = "games", "5cB9Bc9QRbCeqUM/tZO+tg"


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path / "lakehouse", kafka_topic=TOPIC, erasure_key=KEY)


def advance(table, **txns):
    """A commit without rows."""
    return put(table, OWN_COLUMNS.empty_table(), txns)


def staged_file(table, schema):
    return staged(table, pa.Table.from_pylist([{}], schema=schema))


def test_a_slice_that_was_staged_before_an_erasure_commits_nothing_to_quarantine(pipeline, monkeypatch):
    handle = advance(pipeline.bronze, batch=0)

    def stage(*_):
        advance(pipeline.bronze, **{Txn.ERASURES: 1})
        files = staged_file(pipeline.bronze, OWN_COLUMNS), staged_file(pipeline.quarantine, QUARANTINE_COLUMNS)
        return StagedRows(*files, set(), set(), Counter())

    stage_by_hand(monkeypatch, stage)
    now, part = seen(TOPIC, ID, {0: 0}, {0: 2}), MicroBatch(splits(TOPIC, ID, {0: 0}), splits(TOPIC, ID, {0: 2}))
    plan = OffsetPlan(now, {}, now.latest, part)
    with pytest.raises(ConflictError, match="a concurrent run moved erasures from None to 1"):
        bronze_module._commit_micro_batch(pipeline, (handle, None), plan, part, RunReport())
    assert pipeline.quarantine.open() is None
    assert not list(Path(pipeline.lakehouse.root).rglob("*.parquet"))


@pytest.mark.parametrize(
    ("meanwhile", "says"),
    [({Txn.ERASURES: 1}, "moved erasures from None to 1"), ({Txn.BATCH: 1}, "moved batch from 0 to 1")],
    ids=["an erasure", "a replay"],
)
def test_a_slice_without_undecodable_records_that_was_staged_before_bronze_changed_does_not_land(
    pipeline, monkeypatch, meanwhile, says
):
    handle = advance(pipeline.bronze, batch=0)

    def stage(*_):
        advance(pipeline.bronze, **meanwhile)
        return StagedRows(staged_file(pipeline.bronze, OWN_COLUMNS), [], set(), set(), Counter())

    stage_by_hand(monkeypatch, stage)
    now, part = seen(TOPIC, ID, {0: 0}, {0: 2}), MicroBatch(splits(TOPIC, ID, {0: 0}), splits(TOPIC, ID, {0: 2}))
    with pytest.raises(ConflictError, match=f"a concurrent run {says}"):
        bronze_module._commit_micro_batch(pipeline, (handle, None), OffsetPlan(now, {}, now.latest, part), part, RunReport())
    assert not list(Path(pipeline.lakehouse.root).rglob("*.parquet"))


def test_a_list_of_whom_to_keep_out_that_is_gone_lets_nobody_back_in(pipeline):
    handle = advance(pipeline.bronze, batch=0)
    assert record_filter(pipeline, handle) is None
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    handle = pipeline.bronze.open()
    assert record_filter(pipeline, handle) is not None
    shutil.rmtree(pipeline.lakehouse.table(ERASED_PEOPLE).uri)
    with pytest.raises(DataError, match=r"erased_people.*is gone.*game-events erase"):
        record_filter(pipeline, handle)
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    assert record_filter(pipeline, pipeline.bronze.open()) is not None


def test_an_erasure_is_called_finished_once_it_is_on_the_disk(pipeline, monkeypatch):
    advance(pipeline.bronze, batch=0)
    order = []
    monkeypatch.setattr(os, "sync", lambda: order.append("written out"))
    finish = erasure.finish_people
    monkeypatch.setattr(erasure, "finish_people", lambda *given: order.append("finished") or finish(*given))
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    assert order[-2:] == ["written out", "finished"]


def test_a_table_of_others_beside_them_that_only_they_can_write_keeps_no_erasure_from_its_end(pipeline):
    advance(pipeline.bronze, batch=0)
    for name, column in (("others", "n"), ("players", "gamer_id")):
        table = pipeline.lakehouse.table(name)
        put(table, {column: ["bob"]})
        altered(table, change=generated(column))
    report = RunReport()
    people = erasure.erase(pipeline, report, frozenset({"ann"}))
    assert report.parts["erasure"].finished
    remove_old_files(pipeline, report.parts["erasure"], people)
    add_people(pipeline.lakehouse, KEY.encode(), hashes_of(KEY.encode(), frozenset({"eve"})), "a run that was killed")
    resume(pipeline, report)
    assert read_erased_people(pipeline.lakehouse).unfinished == frozenset()


def test_rows_in_a_table_that_only_others_can_write_are_an_error_after_those_of_all_other_tables_are_gone(pipeline):
    advance(pipeline.bronze, batch=0)
    tables = [pipeline.lakehouse.table(name) for name in ("a", "b", "c")]
    for table in tables:
        put(table, {"gamer_id": ["ann", "bob"]})
    altered(tables[1], change=generated("gamer_id"))
    before = data_files(tables[1])
    report = RunReport()
    with pytest.raises(DataError, match="column gamer_id is a generated column"):
        erasure.erase(pipeline, report, frozenset({"ann"}))
    assert [len(rows(table)) for table in (tables[0], tables[2])] == [1, 1]
    assert data_files(tables[1]) == before
    assert not report.parts["erasure"].finished


def test_work_that_landed_before_the_fence_is_finished_behind_it(pipeline, monkeypatch):
    order = []
    for name in ("complete_quarantine", "_fence"):
        monkeypatch.setattr(erasure, name, lambda *_, name=name: order.append(name))
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    assert order == ["complete_quarantine", "_fence", "complete_quarantine"]


def test_doctor_says_who_is_kept_out_and_what_keeps_runs_from_knowing_them(pipeline):
    def doctor(**changed):
        return environment_checks(pipeline.settings.model_copy(update=changed))["erased people"]()

    assert doctor() == "none"
    assert doctor(erasure_key=None) == "none"
    advance(pipeline.bronze, batch=0)
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    assert doctor() == "1 are kept out, recognised by the key that is set"
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_ERASURE_KEY is not set"):
        doctor(erasure_key=None)
    with pytest.raises(ConfigurationError, match="another key"):
        doctor(erasure_key=SecretStr(KEY[::-1]))
    add_people(pipeline.lakehouse, KEY.encode(), hashes_of(KEY.encode(), frozenset({"bob"})), "run")
    assert "of 1 the erasure is not finished" in doctor()
    shutil.rmtree(pipeline.lakehouse.table(ERASED_PEOPLE).uri)
    with pytest.raises(DataError, match="is gone"):
        doctor()


def test_an_interrupted_erasure_whose_ids_are_lost_is_finished_and_holds_up_nobody(pipeline):
    with pytest.raises(DataError, match="nothing to resume"):
        resume(pipeline, RunReport())
    advance(pipeline.bronze, batch=0)
    gone = pa.schema([*OWN_COLUMNS, pa.field("gamer_id", pa.string())])
    silver = pipeline.lakehouse.silver("chess")
    put(silver, pa.Table.from_pylist([{"gamer_id": who} for who in ("ann", "bob", None)], schema=gone), {"batch": 1})
    listed = hashes_of(KEY.encode(), frozenset({"ann", "nobody has this one"}))
    add_people(pipeline.lakehouse, KEY.encode(), listed, "a run that was killed")
    with pytest.raises(DataError, match=r"not finished.*--resume"):
        erasure.erase(pipeline, RunReport(), frozenset({"bob"}))

    dry = RunReport()
    resume(pipeline, dry, dry_run=True)
    assert dry.parts["erasure"].rows == {silver.name: 1}
    report = RunReport()
    wanted = resume(pipeline, report)
    assert wanted.ids == {"ann"}
    done = report.parts["erasure"]
    assert (done.finished, done.lost_ids, done.rows) == (True, 1, {silver.name: 1})
    assert read_erased_people(pipeline.lakehouse).unfinished == frozenset()
    erasure.erase(pipeline, RunReport(), frozenset({"bob"}))
    assert [row["gamer_id"] for row in read_arrow(silver, silver.open()).to_pylist()] == [None]


def test_rows_that_a_run_rejects_while_they_are_erased_are_taken_off_the_count_of_rejected_rows(pipeline, monkeypatch):
    schema = pa.schema([*OWN_COLUMNS, pa.field("game_name", pa.string()), pa.field("gamer_id", pa.string())])
    places = [{"_kafka_topic_id": ID, "_kafka_partition": 0, "_kafka_offset": offset, "_batch": 1} for offset in range(3)]

    def add(table, schema, rows, **txns):
        return put(table, pa.Table.from_pylist(rows, schema=schema), txns)

    rows = [{**place, "game_name": "chess", "gamer_id": "ann"} for place in places]
    app = BronzeIdentity.of(add(pipeline.bronze, schema, rows, batch=1)).app
    silver = pipeline.lakehouse.silver("chess")
    advance(silver, **{app: 0})

    def a_run_beside():
        """It has one row in silver, one was rejected, one dropped."""
        rejected = {**places[1], "layer": "silver", "game": "chess"}
        add(pipeline.quarantine, QUARANTINE_COLUMNS, [rejected])
        add(silver, schema, rows[:1], **{app: 1, Txn.ROWS_DROPPED: 1, Txn.ROWS_QUARANTINED: 1})

    at_point(monkeypatch, "erase_quarantine_committed", a_run_beside)
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    handle = silver.open()
    counters = [handle.transaction_version(app) for app in (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)]
    assert (counters, read_arrow(silver, handle).num_rows) == ([0, 0], 0)
    assert read_arrow(pipeline.quarantine, pipeline.quarantine.open()).num_rows == 0


def test_a_rejected_row_is_taken_off_the_count_of_rejected_rows_also_if_bronze_was_replaced_since(pipeline):
    """Bronze's rows have the numbers of new batches then, and a row that stays rejected is still that of the old batch."""
    schema = pa.schema([*OWN_COLUMNS, pa.field("game_name", pa.string()), pa.field("gamer_id", pa.string())])
    places = [{"_kafka_topic_id": ID, "_kafka_partition": 0, "_kafka_offset": offset, "_batch": 5} for offset in range(3)]

    def add(table, schema, rows, **txns):
        return put(table, pa.Table.from_pylist(rows, schema=schema), txns)

    rows = [{**place, "game_name": "chess", "gamer_id": "ann"} for place in places]
    identity = BronzeIdentity.of(add(pipeline.bronze, schema, rows, **{Txn.BATCH: 5, Txn.INCARNATION: 5}))
    add(pipeline.quarantine, QUARANTINE_COLUMNS, [{**places[1], "_batch": 2, "layer": "silver", "game": "chess"}])
    silver = pipeline.lakehouse.silver("chess")
    add(silver, schema, rows[:1], **{identity.app: 5, Txn.ROWS_DROPPED: 3, Txn.ROWS_QUARANTINED: 4})
    erasure.erase(pipeline, RunReport(), frozenset({"ann"}))
    handle = silver.open()
    counters = [handle.transaction_version(app) for app in (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)]
    assert (counters, read_arrow(silver, handle).num_rows) == ([2, 3], 0)
