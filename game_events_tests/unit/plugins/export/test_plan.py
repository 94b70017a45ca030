"""What is fixed for the export, by the driver alone: what Spark makes of it is tried in test_export.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export import run
from game_events.plugins.export.rows import OnReplaced
from game_events.plugins.export.run import Exporter
from game_events.plugins.export.tables import ExportTables
from game_events.plugins.export.worker import Cut, CutChunks
from game_events_tests.support.worlds.export import World
from game_events_tests.unit.plugins.export.test_chunks import ORIGINS, rows


@pytest.mark.parametrize("wish", ["resend", "go_on"])
def test_what_a_person_asked_for_is_done_once_in_a_run_however_often_dagster_tries_it(
    wish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = World(tmp_path, None)
    planned: list[tuple[int, int]] = []
    monkeypatch.setattr(run, "new_rows", lambda _, steps: planned.append((steps[0].above, steps[0].upto)))
    monkeypatch.setattr(Exporter, "_cut", lambda *_: Cut([], 0))

    def fixed(run_id: str, on_replaced: OnReplaced) -> bool:
        pipeline = replace(world.pipeline("http://127.0.0.1:1/"), run_id=run_id)
        return Exporter(pipeline, RunReport()).plan_slice(on_replaced)

    on_replaced = OnReplaced(**{wish: frozenset({"chess"})})
    world.events(chess=2)
    assert fixed("a run", on_replaced)
    assert not fixed("a run", on_replaced)
    world.events(chess=3)
    assert fixed("a run", on_replaced)
    assert planned == [*([(0, 1)] if wish == "resend" else []), (1, 2)]
    world.events(chess=1)
    assert fixed("another run", on_replaced)
    assert planned[-1] == ((0, 3) if wish == "resend" else (1, 2)), "it may be asked for again"


def test_rows_and_chunks_that_were_fixed_are_counted_of_one_slice_alone(tmp_path: Path):
    pipeline = World(tmp_path, None).pipeline("http://127.0.0.1:1/")
    tables, exporter = ExportTables.of(pipeline.lakehouse, "gamer_id"), Exporter(pipeline, RunReport())
    account = exporter.account
    for number in (1, 2):
        planned = tables.planned.open()
        batches = rows(*[10] * 7).to_batches()
        cut = CutChunks(tables.planned, "gamer_id", number, 3, 10_000, ORIGINS).stage(batches)
        exporter._commit(planned, cut, {}, {})
        assert (account.planned_rows, account.planned_chunks) == (7 * number, 3 * number)
    exporter._commit(tables.planned.open(), Cut([], 0), {}, {})
    assert (account.planned_rows, account.planned_chunks) == (14, 6)


def test_files_without_rows_are_no_work_and_end_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), folder / "part-0.parquet")  # Spark's of an empty partition
    pipeline = World(tmp_path / "world", None).pipeline("http://127.0.0.1:1/")
    tables = ExportTables.of(pipeline.lakehouse, "gamer_id")
    # What Spark's job makes of them.
    monkeypatch.setattr(run, "file_rows", lambda *_: None)
    monkeypatch.setattr(Exporter, "_cut", lambda *_: Cut([], 0))
    assert not Exporter(pipeline, RunReport()).plan_files(str(folder))
    assert tables.planned.open() is None
