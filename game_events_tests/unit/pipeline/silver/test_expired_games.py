"""A game of which a replaced bronze has no row any more keeps its tables: nothing else holds these rows."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import Layer
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver import refresh as silver
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.workers.results import FanOutResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

SCHEMA = pa.schema([("game_name", pa.string()), ("_batch", pa.int64())])


def made(table, game, number, **txn):
    rows = pa.table({"game_name": [game], "_batch": [number]}, schema=SCHEMA)
    put(table, rows, {k.replace("__", ":"): v for k, v in txn.items()})


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    made_of = without_spark(tmp_path / "lake")
    # Batches before 2 are gone.
    made(made_of.bronze, "uno", 2, batch=2, incarnation=2)
    monkeypatch.setattr(silver, "stage_games", lambda *_: FanOutResult())
    return made_of


@pytest.mark.parametrize("full", [False, True])
def test_a_game_that_bronze_has_lost_keeps_its_silver_table(pipeline, full):
    bronze = BronzeIdentity.of(pipeline.bronze.open())
    chess = pipeline.lakehouse.silver("chess")
    made(chess, "chess", 1, **{f"bronze__{bronze.table_id}": 1})
    report = RunReport()
    refresh_silver(pipeline, report, frozenset({"chess"}), full=full)
    assert report.errors == []
    assert DeltaTable(chess.uri).version() == 0


def test_a_run_that_has_read_an_older_bronze_replaces_no_rows_by_fewer(pipeline):
    bronze = BronzeIdentity.of(pipeline.bronze.open())
    uno = pipeline.lakehouse.silver("uno")
    for _ in range(2):
        made(uno, "uno", 3, **{f"bronze__{bronze.table_id}": 3})
    DeltaTable(uno.uri).restore(0)
    report = RunReport()
    refresh_silver(pipeline, report, frozenset({"uno"}))
    assert [e.game for e in report.errors] == ["uno"]
    assert DeltaTable(uno.uri).version() == 2


def test_gold_looks_at_a_replaced_table_though_a_rival_took_the_note_back_before_it_was(pipeline, monkeypatch):
    bronze = BronzeIdentity.of(pipeline.bronze.open())
    made(pipeline.lakehouse.silver("uno"), "uno", 2, **{f"bronze__{bronze.table_id}": 2})
    settled = pipeline.progress.update(bronze.key, lambda now: now.done(Layer.SILVER, 2, {"uno": 2}).done(Layer.GOLD, 2))

    def stage(*_):
        # A rival's run over every game: gold has what silver has.
        pipeline.progress.update(bronze.key, lambda now: now.done(Layer.GOLD, 2, seen=now))
        return FanOutResult()

    monkeypatch.setattr(silver, "stage_games", stage)
    refresh_silver(pipeline, RunReport(), frozenset({"uno"}), full=True)
    assert settled.failed_in(Layer.GOLD) == set()
    assert pipeline.progress.read(bronze.key).failed_in(Layer.GOLD) == {"uno"}


def test_a_run_whose_floor_is_gone_by_its_end_moves_none(pipeline, monkeypatch):
    """Whoever lost it lost the failures that it left out, too: a floor without these would pass their rows."""
    bronze = BronzeIdentity.of(pipeline.bronze.open())
    pipeline.progress.update(bronze.key, lambda now: now.done(Layer.SILVER, 1, {}, {"uno": "disk full"}))

    def stage(*_):
        # A run that began before bronze was rebuilt ends.
        pipeline.progress.update("another bronze", lambda now: now.done(Layer.SILVER, 9))
        return FanOutResult(failed={"uno": "disk full"})

    monkeypatch.setattr(silver, "stage_games", stage)
    refresh_silver(pipeline, RunReport())
    assert pipeline.progress.read(bronze.key).floor(Layer.SILVER) == 0
