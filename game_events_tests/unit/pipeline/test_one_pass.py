"""What is held for silver and gold is given for exactly the files that it belongs to, and deleted in every other case."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from game_events.decoding.columns import ColumnMap
from game_events.errors import ConflictError
from game_events.lakehouse.data.columns import TIME, bronze_schema
from game_events.lakehouse.data.reading import FileSelection
from game_events.lakehouse.data.staging import StagedFile, staged
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline import fanout as module
from game_events.pipeline.fanout import OnePass
from game_events.workers.fanout import FanOut, OnePassTask, Routing, SecondStage
from game_events.workers.results import FanOutResult
from game_events.workers.rows import COUNT, KEY, PartialAggregate

COLUMNS = ColumnMap({"game_name": pa.string(), "gamer_id": pa.string(), "at": TIME})
OF = PartialAggregate("game_name", "gamer_id", "at")


@pytest.fixture
def lakehouse(tmp_path: Path) -> Lakehouse:
    return Lakehouse(str(tmp_path))


def events(*rows: tuple[str, str], batch: int = 1) -> pa.Table:
    """Rows of bronze."""
    found = [{"game_name": game, "gamer_id": gamer, "_batch": batch, "_raw_value": b"x"} for game, gamer in rows]
    return pa.Table.from_pylist(found, schema=bronze_schema(COLUMNS))


def fan_out(lakehouse: Lakehouse, most_games: int | None = None, **routing: object) -> FanOut:
    task = OnePassTask(lakehouse, Routing(**routing), OF, True, most_games).fan_out(COLUMNS)  # type: ignore[arg-type]
    assert task is not None
    return task


def written(task: FanOut, rows: pa.Table) -> FanOutResult:
    stage = SecondStage(task)
    stage.add(rows)
    return stage.finish()


def files_of(*files: StagedFile, exact: bool = True) -> FileSelection:
    return FileSelection("", tuple(file.data_file() for file in files), exact)


def on_disk(lakehouse: Lakehouse) -> list[str]:
    return sorted(str(path.relative_to(lakehouse.root)) for path in Path(lakehouse.root).rglob("silver*"))


def holding(lakehouse: Lakehouse, rows: pa.Table, batches: int = 1) -> tuple[OnePass, list[StagedFile]]:
    """A process that holds silver's files of some batches, and bronze's files."""
    one_pass, files, task = OnePass(), list[StagedFile](), fan_out(lakehouse)
    for _ in range(batches):
        one_pass.staged(task, written(task, rows))
        committed = staged(lakehouse.table("bronze_events"), rows)
        one_pass.committed(committed)
        files += committed
    return one_pass, files


def test_silver_takes_the_result_of_exactly_its_files_once(lakehouse: Lakehouse) -> None:
    rows = events(("uno", "a"), ("uno", "b"), ("go", "a"))
    one_pass, files = holding(lakehouse, rows, batches=2)
    found = one_pass.take(files_of(*reversed(files)), fan_out(lakehouse))
    assert found is not None
    assert {game: sum(f.rows for f in of) for game, of in found.files.items()} == {"uno": 4, "go": 2}
    assert one_pass.take(files_of(*files), fan_out(lakehouse)) is None
    one_pass.drop()
    assert all((Path(lakehouse.silver(g).uri) / f.path).exists() for g, of in found.files.items() for f in of)


@pytest.mark.parametrize("case", ["fewer", "more", "other", "not exact", "routing", "columns"])
def test_what_silver_would_do_otherwise_is_deleted(lakehouse: Lakehouse, case: str) -> None:
    rows = events(("uno", "a"), ("go", "a"))
    one_pass, files = holding(lakehouse, rows, batches=2)
    more = staged(lakehouse.table("bronze_events"), rows)
    asked = {"fewer": files[:1], "more": [*files, *more], "other": [files[0], *more]}.get(case, files)
    task = fan_out(lakehouse, **({"known": frozenset({"uno"})} if case == "routing" else {}))
    if case == "columns":
        fewer = ColumnMap({"game_name": pa.string(), "gamer_id": pa.string()})
        task = OnePassTask(lakehouse, Routing(), OF, True, None).fan_out(fewer)  # type: ignore[assignment]
    assert one_pass.take(files_of(*asked, exact=case != "not exact"), task) is None
    assert on_disk(lakehouse) == []


def test_a_micro_batch_that_is_not_committed_or_has_other_columns_leaves_nothing(lakehouse: Lakehouse) -> None:
    rows, task = events(("uno", "a")), fan_out(lakehouse)
    one_pass = OnePass()
    one_pass.staged(task, written(task, rows))
    with pytest.raises(ConflictError), one_pass.dropped_on_error():
        raise ConflictError("a rival was first")
    assert on_disk(lakehouse) == []
    one_pass, files = holding(lakehouse, rows)
    other = OnePassTask(lakehouse, Routing(), OF, True, None).fan_out(ColumnMap({"game_name": pa.string(), "n": pa.int64()}))
    assert other is not None
    one_pass.staged(other, written(other, rows.append_column("n", pa.nulls(1, pa.int64()))))
    one_pass.committed(files)
    assert on_disk(lakehouse) == []


def test_the_folder_of_a_table_stays(lakehouse: Lakehouse) -> None:
    write_deltalake(lakehouse.silver("uno").uri, pa.table({"n": [1]}))
    one_pass, _ = holding(lakehouse, events(("uno", "a"), ("go", "a")))
    one_pass.drop()
    assert {path.partition("/")[0] for path in on_disk(lakehouse)} == {"silver_uno_events"}
    assert lakehouse.silver("uno").open() is not None


def test_a_task_with_too_many_games_or_new_names_writes_nothing_for_silver(lakehouse: Lakehouse) -> None:
    rows = events(("uno", "a"), ("go", "a"))
    for task in (fan_out(lakehouse, most_games=1), fan_out(lakehouse, room=1)):
        one_pass, result = OnePass(), written(task, rows)
        assert result == FanOutResult(crowded=True)
        one_pass.staged(task, result)
        one_pass.committed([])
        assert one_pass.take(files_of(), task) is None
        assert on_disk(lakehouse) == []
    assert written(fan_out(lakehouse, most_games=2), rows).games == {"uno", "go"}


def test_an_error_in_silvers_files_is_none_of_the_job(lakehouse: Lakehouse, caplog: pytest.LogCaptureFixture) -> None:
    stage = SecondStage(fan_out(lakehouse))
    stage.add(events(("uno", "a")))
    stage._stage._write_buffer()
    stage._trying(lambda: 1 // 0)  # type: ignore[arg-type]
    stage.add(events(("uno", "b")))
    assert stage.finish() == FanOutResult(crowded=True)
    assert "one_pass=given_up error=ZeroDivisionError" in caplog.text
    assert on_disk(lakehouse) == []


def silver_files(result: FanOutResult, *games: str) -> FileSelection:
    return files_of(*(file for game in games for file in result.files[game]))


def test_gold_takes_the_partial_rows_of_exactly_its_files(lakehouse: Lakehouse) -> None:
    found: list[FanOutResult] = []
    one_pass = OnePass()
    for gamers in ("ab", "bc"):
        rows, task = events(*(("uno", gamer) for gamer in gamers), ("go", "a")), fan_out(lakehouse)
        one_pass.staged(task, written(task, rows))
        files = staged(lakehouse.table("bronze_events"), rows)
        one_pass.committed(files)
        taken = one_pass.take(files_of(*files), task)
        assert taken is not None
        found.append(taken)
    both = files_of(*(file for result in found for file in result.files["uno"]))
    rows = one_pass.take_partial("uno", both)
    assert rows is not None
    counts = {row[KEY]: row[COUNT] for row in rows.to_pylist()}
    assert counts == {"a": 1, "b": 2, "c": 1}
    assert one_pass.take_partial("uno", both) is None
    assert one_pass.take_partial("go", silver_files(found[1], "go")) is None
    assert one_pass.take_partial("rummy", both) is None


def test_partial_rows_that_a_task_has_dropped_are_missed(lakehouse: Lakehouse) -> None:
    rows, task = events(("uno", "a"), ("uno", "b")), fan_out(lakehouse)
    one_pass, first, second = OnePass(), written(task, rows), written(task, rows)
    second.partials.clear()
    one_pass.staged(task, FanOutResult.sum([first, second]))
    files = staged(lakehouse.table("bronze_events"), rows)
    one_pass.committed(files)
    taken = one_pass.take(files_of(*files), task)
    assert taken is not None
    assert one_pass.take_partial("uno", silver_files(taken, "uno")) is None


def test_more_files_than_the_driver_holds_are_deleted(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    one_pass, files = holding(lakehouse, events(("uno", "a"), ("go", "a")))
    assert one_pass.take(files_of(*files), fan_out(lakehouse)) is None
    assert on_disk(lakehouse) == []


def test_rows_without_a_column_of_the_games_name_are_not_written(lakehouse: Lakehouse) -> None:
    task = OnePassTask(lakehouse, Routing(), OF, True, None)
    assert task.fan_out(ColumnMap({"gamer_id": pa.string()})) is None
    one_pass = OnePass()
    one_pass.staged(None, FanOutResult())
    one_pass.committed([])
    assert one_pass.take(files_of(), fan_out(lakehouse)) is None
