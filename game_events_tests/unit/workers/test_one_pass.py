"""What bronze's worker writes for silver: the rows of its own files, by game, without what only bronze keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.decoding.decoder import DecodePlan
from game_events.lakehouse.data.columns import BRONZE_ONLY
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse
from game_events.plugins.governance.workers import ErasedPeople, id_hash
from game_events.workers.decode import BronzeTask
from game_events.workers.fanout import INVALID, OnePassTask, Routing
from game_events.workers.results import StagedRows
from game_events.workers.rows import COUNT, GAME, PartialAggregate
from game_events_tests.support.worker_jobs import ReadByHand, run, task_numbers
from game_events_tests.unit.workers.test_decode import OLD, PLAN, good, records

OF = PartialAggregate("game", "game", "n")
KEY = b"k" * 32


def staged(
    folder: Path,
    *batches: pa.RecordBatch,
    plan: DecodePlan = PLAN,
    columns: PartialAggregate = OF,
    record_filter: ErasedPeople | None = None,
) -> tuple[Lakehouse, StagedRows]:
    lakehouse = Lakehouse(str(folder))
    one_pass = OnePassTask(lakehouse, Routing(), columns, True, None)
    tables = lakehouse.table(BRONZE), lakehouse.table(QUARANTINE)
    task = BronzeTask(
        *tables, plan, ReadByHand([list(batches)]), 9, "run 1", keep_raw=True, record_filter=record_filter, one_pass=one_pass
    )
    return lakehouse, run(replace(task, plan=plan), task_numbers(0))


def on_disk(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if path.parent.name.startswith("silver")]


def test_silvers_files_have_bronzes_rows_by_game(tmp_path: Path) -> None:
    values = [good(1, OLD, game="uno"), good(2, OLD, game="go"), None, good(3, OLD, game="uno"), good(4, OLD, game="NO NAME")]
    lakehouse, result = staged(tmp_path, records(values[:3]), records(values[3:], start=3))
    bronze = pa.concat_tables(pq.read_table(tmp_path / BRONZE / file.path) for file in result.bronze)
    assert result.silver.games == {"uno", "go"}
    for game, files in result.silver.files.items():
        found = pa.concat_tables(pq.read_table(Path(lakehouse.silver(game).uri) / file.path) for file in files)
        wanted = [row for row in bronze.drop(list(BRONZE_ONLY)).to_pylist() if row["game"] == game]
        assert found.to_pylist() == wanted
        assert set(bronze.column_names) - set(found.column_names) == set(BRONZE_ONLY)
    assert result.silver.refused == {INVALID: Counter({"": 1})}
    (partial,) = result.silver.partials
    assert {row[GAME]: row[COUNT] for row in partial.to_pylist()} == {"uno": 2, "go": 1, "NO NAME": 1}


def test_rows_of_erased_people_are_in_none_of_the_files(tmp_path: Path) -> None:
    gone = ErasedPeople("game", KEY, frozenset({id_hash(KEY, b"go")}))
    _, result = staged(tmp_path, records([good(1, OLD, game="uno"), good(2, OLD, game="go")]), record_filter=gone)
    assert (result.suppressed, result.silver.games) == (1, {"uno"})


def test_where_the_plan_lacks_a_type_nothing_is_left_for_silver(tmp_path: Path) -> None:
    lacking = DecodePlan()
    _, result = staged(tmp_path, records([good(1, OLD, game="uno")]), plan=lacking)
    assert result.unknown
    assert result.silver.files == {}
    assert on_disk(tmp_path) == []


def test_without_a_column_of_the_games_name_nothing_is_written_for_silver(tmp_path: Path) -> None:
    other = PartialAggregate("no_such_column", "game", "n")
    _, result = staged(tmp_path, records([good(1, OLD, game="uno")]), columns=other)
    assert (len(result.bronze), result.silver.files) == (1, {})


@pytest.mark.parametrize("game", ["uno", "go"])
def test_files_of_an_attempt_that_is_repeated_are_deleted(tmp_path: Path, game: str) -> None:
    lakehouse, result = staged(tmp_path, records([good(1, OLD, game=game)]))
    assert on_disk(tmp_path)
    tables = lakehouse.table(BRONZE), lakehouse.table(QUARANTINE)
    one_pass = OnePassTask(lakehouse, Routing(), OF, True, None)
    BronzeTask(*tables, PLAN, ReadByHand([]), 9, "run 1", keep_raw=True, one_pass=one_pass).discard(result)
    assert (on_disk(tmp_path), list((tmp_path / BRONZE).glob("*.parquet"))) == ([], [])
