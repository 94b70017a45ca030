"""The check of silver's rows at the end of a run reads what is new, and is as strict as a count of all rows."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.system_tables import CountedRows, GameRows
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import Reconciliation, count_rows, reconcile
from game_events.pipeline.checks.table_checks import CHECKS, CONSERVED, check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality import Decisions
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import NEW, WHOLE, CheckResult
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, replay_and_refresh, selection_of
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.plugins.governance.run import erase
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.quality import Event, rule, send_events

POSITIVE = rule("positive", "amount > 0", "quarantine")


@pytest.fixture
def pipeline(make_settings: MakeSettings, make_pipeline: MakePipeline) -> Pipeline:
    return make_pipeline(make_settings(rules=[POSITIVE], erasure_key="a key of the tests, long enough"))


def after_a_run(pipeline: Pipeline, *events: Event) -> Reconciliation:
    """The check at the end of a run that has read these events."""
    send_events(pipeline.settings, events)
    refresh(pipeline)
    return reconcile(pipeline, ())


def key(pipeline: Pipeline) -> str:
    bronze = pipeline.bronze.open()
    assert bronze is not None
    return BronzeIdentity.of(bronze).key


def counted(pipeline: Pipeline) -> CountedRows:
    return pipeline.progress.read(key(pipeline)).counted


def said(found: Reconciliation) -> dict[str, object]:
    return {**vars(found), "counted_before": None}


def test_each_run_counts_its_own_rows_and_comes_to_what_a_count_of_all_rows_comes_to(pipeline: Pipeline) -> None:
    found = after_a_run(pipeline, Event("uno", 1), Event("go", 1), Event("uno", -1), Event("", 1))
    assert (found.passed, found.counted_before) == (True, 0)
    assert counted(pipeline) == CountedRows(1, {"uno": GameRows(2, 0, 1), "go": GameRows(1), None: GameRows(1)})
    for number in (2, 3, 4):
        found = after_a_run(pipeline, Event("uno", number), Event("go", -1), Event("new" if number == 3 else "", 1))
        assert (found.passed, found.counted_before) == (True, number - 1)
        assert said(found) == said(reconcile(pipeline))
    assert counted(pipeline) == CountedRows(
        4, {"uno": GameRows(5, 0, 1), "go": GameRows(4, 0, 3), "new": GameRows(1), None: GameRows(3)}
    )
    assert (found.bronze, found.quarantined, found.unrouted) == (13, 4, 3)
    checks = {check.name: check for check in CHECKS}
    assert checks[CONSERVED].run(pipeline).covers == WHOLE
    in_run = checks[CONSERVED].in_run(pipeline, RunReport())
    assert in_run is not None
    assert in_run.covers == NEW


def test_a_job_counts_the_rows_of_later_batches_by_what_silver_has_of_them(pipeline: Pipeline) -> None:
    rows = [("uno", 1), ("uno", 2), ("uno", 3), ("go", 2), ("go", 3), ("left out", 2), ("uno", None)]
    names, batches = zip(*rows, strict=True)
    put(pipeline.bronze, {"game_name": names, "_batch": pa.array(batches, pa.int64())})
    bronze = pipeline.bronze.open()
    assert bronze is not None
    decisions = Decisions(pipeline.quarantine, None, "bronze")
    found = count_rows(pipeline, bronze, decisions, {"uno": 3, "go": 1}, 2, above=1)
    assert found.rows == {"uno": 2, "go": 2, None: 1}
    assert +found.pending == {"go": 2}
    assert +found.settled == {"uno": 1, None: 2}, "rows that their game lacks are left out by the settings: of no game"
    assert count_rows(pipeline, bronze, decisions, {"uno": 3}, 3, above=3).rows == {}


def test_rows_of_no_selected_message_type_belong_to_no_game(pipeline: Pipeline) -> None:
    bronze = put(pipeline.bronze, {"_batch": [1, 2, 2]})
    found = count_rows(pipeline, bronze, Decisions(pipeline.quarantine, None, "bronze"), {"uno": 3}, 2, above=1)
    assert found.rows == found.settled == {None: 2}


def test_rows_that_were_counted_and_tables_of_games_without_news_are_not_read_again(pipeline: Pipeline) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("go", 1))
    # As many rows as the table has, of other games: a check that reads these rows would see it.
    other = CountedRows(1, {"uno": GameRows(0), "go": GameRows(2)})
    pipeline.progress.update(key(pipeline), lambda now: replace(now, counted=other))
    shutil.move(pipeline.lakehouse.silver("uno").uri, pipeline.lakehouse.silver("uno").uri + "-away")
    found = reconcile(pipeline, ())
    assert (found.passed, found.counted_before, found.silver) == (True, 1, 2)
    assert reconcile(pipeline).unrouted == 1


def lose_a_row(pipeline: Pipeline) -> None:
    DeltaTable(pipeline.lakehouse.silver("uno").uri).delete("amount = 1")


def double_a_row(pipeline: Pipeline) -> None:
    table = DeltaTable(pipeline.lakehouse.silver("uno").uri)
    write_deltalake(table.table_uri, pa.table(table.to_pyarrow_table()).slice(0, 1), mode="append")


def lose_a_row_of_bronze(pipeline: Pipeline) -> None:
    DeltaTable(pipeline.lakehouse.table(BRONZE).uri).delete("amount = 1 AND game_name = 'uno'")


def lose_a_rejected_row(pipeline: Pipeline) -> None:
    DeltaTable(pipeline.quarantine.uri).delete("layer = 'silver'")


@pytest.mark.parametrize("fault", [lose_a_row, double_a_row, lose_a_row_of_bronze, lose_a_rejected_row])
def test_a_fault_in_rows_that_were_counted_before_is_found_with_the_next_news_of_the_game(pipeline: Pipeline, fault) -> None:  # type: ignore[no-untyped-def]
    after_a_run(pipeline, Event("uno", 1), Event("uno", 2), Event("uno", -1), Event("go", 1))
    assert reconcile(pipeline, ()).counted_before == 1
    before = counted(pipeline)
    fault(pipeline)
    send_events(pipeline.settings, [Event("uno", 5)])
    refresh(pipeline)
    found = reconcile(pipeline, ())
    assert (found.passed, found.counted_before) == (False, 0)
    assert "uno" in found.wrong
    assert counted(pipeline) == before


def test_rejected_rows_that_are_gone_are_found_with_the_next_news_of_any_game(pipeline: Pipeline) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("uno", -1), Event("go", 1))
    lose_a_rejected_row(pipeline)
    found = after_a_run(pipeline, Event("go", 2))
    assert (found.passed, list(found.wrong)) == (False, ["uno"])


def at_its_end(pipeline: Pipeline, report: RunReport) -> CheckResult:
    """The check of a run, at its end."""
    check_after_run(pipeline, report)
    (found,) = [check for check in report.checks if check.name == CONSERVED]
    return found


@pytest.mark.parametrize("way", ["a full refresh", "a rebuilt table"])
def test_a_table_that_a_run_has_rewritten_is_checked_at_its_end_without_news_of_its_game(
    pipeline: Pipeline, make_pipeline: MakePipeline, way: str
) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("uno", 2), Event("go", 1))
    again = make_pipeline(pipeline.settings)
    if way == "a full refresh":
        report = refresh(again, selection=selection_of(again, full_refresh=["silver"]))
    else:
        shutil.rmtree(pipeline.lakehouse.silver("uno").uri)
        report = refresh(again)
    lose_a_row(pipeline)
    found = at_its_end(again, report)
    assert (found.passed, found.covers) == (False, WHOLE)
    assert "uno" in str(found.counts["games_that_differ"])


def test_after_rejected_rows_were_read_again_the_check_has_the_numbers_of_a_count_of_all_rows(
    pipeline: Pipeline, make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("uno", -1), Event("go", 1))
    same = {"lakehouse": pipeline.settings.lakehouse, "kafka_topic": pipeline.settings.kafka_topic}
    looser = make_pipeline(make_settings(rules=[rule("positive", "amount > -5", "quarantine")], **same))
    report = RunReport()
    replay_and_refresh(looser, report, ReplaySelection())
    found = at_its_end(looser, report)
    assert (found.passed, found.covers) == (True, NEW)
    assert (found.counts["silver_rows"], found.counts["quarantined_rows"]) == (3, 0)
    assert found.counts == reconcile(looser).metadata()


def test_rows_of_a_game_that_waits_stay_pending_and_are_counted_once_they_have_come(pipeline: Pipeline) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("go", 1))
    send_events(pipeline.settings, [Event("uno", 2), Event("go", 2)])
    load_bronze(pipeline, RunReport())
    refresh_silver(pipeline, RunReport(), frozenset({"go"}))
    found = reconcile(pipeline, ())
    assert (found.passed, found.counted_before, found.pending) == (True, 1, 1)
    assert said(found) == said(reconcile(pipeline))
    assert counted(pipeline).batch == 1
    refresh(pipeline)
    found = reconcile(pipeline, ())
    assert (found.passed, found.counted_before, found.pending) == (True, 1, 0)
    assert counted(pipeline) == CountedRows(2, {"uno": GameRows(2), "go": GameRows(2)})


def test_after_rows_were_changed_all_are_counted_and_the_check_passes(pipeline: Pipeline) -> None:
    after_a_run(pipeline, Event("uno", 1), Event("uno", 2, gamer="bob"), Event("go", 1))
    erase(pipeline, RunReport(), frozenset({"bob"}))
    found = reconcile(pipeline, ())
    assert (found.passed, found.counted_before, found.bronze) == (True, 0, 2)
    assert after_a_run(pipeline, Event("uno", 3)).counted_before == 1
    redecode(pipeline, RunReport())
    refresh(pipeline)
    assert reconcile(pipeline, ()).passed


def test_a_lakehouse_that_cannot_be_written_is_checked_all_the_same(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    send_events(pipeline.settings, [Event("uno", 1)])
    refresh(pipeline)
    assert reconcile(replace(pipeline, read_only=True), ()).passed
    assert "counted_rows_not_kept" in caplog.text
