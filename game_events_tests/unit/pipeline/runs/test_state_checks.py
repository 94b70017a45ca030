"""What `doctor` says of the tables' state: failed runs, rows that wait, schemas that do not compile. No Spark, no service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.system_tables import append_events
from game_events.lakehouse.tables import Layer
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs import preflight
from game_events.pipeline.runs.preflight import run_checks, schemas, state_checks
from game_events_tests.support.edge_values import earlier_release
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

AT = datetime(2026, 7, 1, 10, tzinfo=UTC)


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path)


def found(pipeline):
    """Check -> (whether somebody should look, what it says); all are well, whatever they say."""
    checks = {n: c for n, c in preflight.state_checks(pipeline).items() if n != "schemas"}
    answers = run_checks(checks, pipeline.settings)
    assert all(answer.ok for answer in answers), answers
    return {answer.check: (answer.look, answer.detail) for answer in answers}


def test_an_empty_lakehouse_is_well(pipeline):
    assert found(pipeline) == {
        "last run": (False, "none is in the event log"),
        "waiting": (False, "there is no bronze table yet"),
        "quarantine": (False, "nothing is in it"),
        "columns": (False, "there is no bronze table yet"),
        "names": (False, "there is no row yet"),
        "statistics": (False, "readers that skip files find all rows"),
    }


def test_a_failed_run_rows_that_wait_and_bad_schemas_are_to_be_looked_at(pipeline):
    put(pipeline.bronze, {"game_name": ["chess", "chess", "go", None], "_batch": [1, 2, 2, 2]}, {"batch": 2})
    identity = BronzeIdentity.of(pipeline.bronze.open())
    pipeline.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 1, {"chess": 1}, {"go": "a worker crashed"}))
    reasons = ["TOMBSTONE", "BAD_SCHEMA", "BAD_SCHEMA", "UNKNOWN_SCHEMA"]
    put(pipeline.quarantine, {"reason": reasons, "replayed_batch": pa.array([None, None, None, 7], pa.int64())}, {})
    error = {"error": {"class": "DataError", "text": "the topic\nwas truncated"}}
    run = {"kind": "run", "name": "all", "status": "failed", "seconds": 1.0, "time": AT, "detail": json.dumps(error)}
    append_events(pipeline.lakehouse, [run], "abcdefgh-1", "refresh#0")
    assert found(pipeline) == {
        "last run": (
            True,
            "all failed at 2026-07-01 10:00:00 UTC: the topic was truncated; `game-events log --run abcdefgh` has all of it",
        ),
        "waiting": (
            True,
            "2 rows of bronze_events wait for silver; tables of go failed, or are to be rebuilt: a worker crashed: "
            "`game-events run`",
        ),
        "quarantine": (True, "3 rows: BAD_SCHEMA 2, TOMBSTONE 1; `game-events quarantine list` says why"),
        "columns": (False, "2 columns"),
        "names": (
            False,
            "3 of the newest 4 rows have a legal name in game_name, the others are in no table of silver: it holds None 1",
        ),
        "statistics": (False, "readers that skip files find all rows"),
    }


def test_a_run_that_went_well_and_records_nobody_can_mend_are_no_hints(pipeline):
    put(pipeline.bronze, {"game_name": ["chess"], "_batch": [1]}, {"batch": 1})
    identity = BronzeIdentity.of(pipeline.bronze.open())
    pipeline.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 1, {"chess": 1}))
    put(pipeline.quarantine, {"reason": ["TOMBSTONE"], "replayed_batch": pa.array([None], pa.int64())}, {})
    run = {"kind": "run", "name": "refresh", "status": "succeeded", "seconds": 1.0, "time": AT}
    append_events(pipeline.lakehouse, [run], "abcdefgh-1", "refresh#0")
    assert {name: look for name, (look, _) in found(pipeline).items() if look} == {}
    assert found(pipeline)["quarantine"][1] == "1 row: TOMBSTONE 1"
    assert found(pipeline)["waiting"][1] == "0 rows of bronze_events wait for silver"


def test_files_of_an_earlier_release_are_named_until_maintenance_has_renewed_them(pipeline, monkeypatch):
    with earlier_release():
        put(pipeline.lakehouse.silver("chess"), {"f": [float("nan")]})
        put(pipeline.lakehouse.silver("chess"), {"f": [1.0]})
        put(pipeline.lakehouse.silver("go"), {"s": ["plain"]})
    look, said = found(pipeline)["statistics"]
    assert look
    assert said.startswith(
        "silver_chess_events (2 files) of an earlier release or another engine: filters of other readers may miss rows"
    )
    assert "`game-events maintain`" in said
    maintain(pipeline, RunReport())
    assert found(pipeline)["statistics"] == (False, "readers that skip files find all rows")
    monkeypatch.setattr(preflight, "MOST_TABLES", 1)
    assert found(pipeline)["statistics"] == (False, "readers that skip files find all rows; 1 table not looked at")


def test_schemas_that_do_not_compile_are_named():
    def messages(schema_id):
        if schema_id == 6:
            raise DataError("schema id 6 does not compile:\n confluent/meta.proto: not found")

    catalog = SimpleNamespace(ids_of=lambda _: [5, 6, 7], messages=messages, left_out=lambda _: 0)
    settings = load_settings(kafka_topic="events")
    said = schemas(SimpleNamespace(settings=settings, catalog=catalog, open_quarantine=lambda: None))
    assert isinstance(said, preflight.Hint)
    assert said == (
        "1 of 3 cannot be used, their records are quarantined: schema id 6 does not compile: confluent/meta.proto: not found"
    )
    catalog.ids_of = lambda _: [5]
    assert schemas(SimpleNamespace(settings=settings, catalog=catalog, open_quarantine=lambda: None)) == "1 schema compiles"
    catalog.left_out = lambda _: 19_000
    settings = load_settings(kafka_topic="events")
    said = schemas(SimpleNamespace(settings=settings, catalog=catalog, open_quarantine=lambda: None))
    assert said == "1 schema compiles; 19,000 message types of very large ones not looked at"


def test_of_unrouted_names_a_few_are_shown_cut(tmp_path):
    wrong = without_spark(tmp_path)
    rows = {"game_name": [f"No Game {n} " + "x" * 10_000 for n in range(50)], "_batch": [1] * 50}
    put(wrong.bronze, rows, {"batch": 1})
    (said,) = run_checks({"names": state_checks(wrong)["names"]}, wrong.settings)
    assert said.look
    assert "and 45 more" in said.detail
    assert len(json.dumps(said.to_dict())) < 2_000


def test_names_that_are_no_games_are_shown_and_another_column_is_asked_for(tmp_path):
    wrong = without_spark(tmp_path, entity_column="topic")
    rows = {"topic": ["t.otel_logs", "t.otel_logs", None, "go"], "game": ["a"] * 4, "_batch": [1, 1, 2, 2]}
    put(wrong.bronze, rows, {"batch": 2})
    assert found(wrong)["names"] == (
        True,
        "1 of the newest 4 rows have a legal name in topic, the others are in no table of silver: it holds "
        "'t.otel_logs' 2, None 1",
    )
    (said,) = run_checks({"names": state_checks(wrong)["names"]}, wrong.settings)
    assert said.to_dict()["data"] == {
        "rows": 4,
        "unrouted_rows": 3,
        "unrouted": [{"name": "'t.otel_logs'", "rows": 2}, {"name": "None", "rows": 1}],
    }
    nested = without_spark(tmp_path, entity_column="meta.game")
    look, text = found(nested)["names"]
    assert look
    assert text.startswith("set GAME_EVENTS_ENTITY_COLUMN: bronze has no column 'meta.game'. It has game, ")


def test_schemas_of_other_subjects_that_quarantined_records_name_are_looked_at_too(pipeline, monkeypatch):
    """Subjects may be called by their records (RecordNameStrategy): none is called by the topic."""
    columns = {
        "reason": ["BAD_SCHEMA", "BAD_SCHEMA", "BAD_SCHEMA", "TOMBSTONE", "REGISTRY_CHANGED"],
        "replayed_batch": pa.array([None, None, 7, None, None], pa.int64()),
        "_schema_id": pa.array([41, 41, 42, 43, None], pa.int64()),
        "_schema_guid": pa.array([None, None, None, None, "g"], pa.string()),
    }
    put(pipeline.quarantine, columns, {})

    def messages(schema_id):
        if schema_id != 5:
            raise DataError(f"schema id {schema_id} does not compile")

    catalog = SimpleNamespace(ids_of=lambda _: [5], messages=messages, left_out=lambda _: 0)
    monkeypatch.setitem(pipeline.__dict__, "catalog", catalog)
    said = schemas(pipeline)
    assert said == (
        "2 of 3 cannot be used, their records are quarantined: schema id 41 does not compile; schema id g does not compile"
    )
