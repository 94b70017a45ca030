"""A store that is slow, away, or refuses: a clear error, nothing half-visible, and the next run goes on."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.lakehouse.storage import explain, refuse_unsafe_store
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import environment_checks, run_checks
from game_events.pipeline.runs.refresh import refresh
from game_events.spark.failures import ALL_CARRIERS
from game_events.workers.fanout import FanOut
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.servers.object_store import BUCKET, SECRET, ObjectStore
from game_events_tests.support.worker_jobs import run
from game_events_tests.support.worlds.waves import at_point, send

ROWS = pa.table({"game": ["uno", "rummy", "uno", "chess"], "n": [1, 2, 3, 4]})
MakeS3 = Callable[[Settings], Pipeline]


def failure_of(settings: Settings, run: Callable[[], object]) -> GameEventsError:
    """What the user is told, as `errors_decide` says it."""
    try:
        report = run()
    except GameEventsError as error:
        return error
    except ALL_CARRIERS as error:
        found = explain(error, settings.lakehouse)
        assert found is not None, error
        return found
    # Games fail one by one where only their own tables are concerned.
    return TransientError("; ".join(report.errors))


def test_a_store_that_answers_503_for_a_while_is_waited_for(s3: Settings, make_s3_pipeline: MakeS3, store: ObjectStore) -> None:
    sent = send(s3)
    store.tell("fail 503 6")
    assert refresh(make_s3_pipeline(s3)).success
    assert_books_balance(s3, sent)


@pytest.mark.parametrize("point", ["bronze_staged", "silver_staged"])
@pytest.mark.scenario
def test_a_store_that_goes_away_in_mid_run_and_comes_back_loses_nothing(
    point: str, s3: Settings, make_s3_pipeline: MakeS3, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(s3)
    with monkeypatch.context() as patch:
        happened = at_point(patch, point, lambda: store.tell("down"))
        try:
            error = failure_of(s3, lambda: refresh(make_s3_pipeline(s3)))
        finally:
            store.tell("up")
    assert happened == [point]
    assert isinstance(error, TransientError)
    assert "object store" in str(error)
    assert refresh(make_s3_pipeline(s3)).success
    assert_books_balance(s3, sent)


def test_wrong_credentials_are_a_clear_error_and_are_not_repeated(
    tables_only: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    for look in (
        Lakehouse.of(tables_only).names,
        Lakehouse.of(tables_only).table("bronze_events").open,
        lambda: refuse_unsafe_store(tables_only.lakehouse, Lakehouse.of(tables_only).options),
    ):
        with pytest.raises(ConfigurationError, match=r"refuses access .*AWS_ACCESS_KEY_ID") as raised:
            look()
        assert SECRET not in str(raised.value)


def test_a_bucket_that_is_not_there_is_named(tables_only: Settings) -> None:
    settings = tables_only.model_copy(update={"lakehouse": "s3://nowhere/x"})
    with pytest.raises(ConfigurationError, match=r"s3://nowhere/x.*no such bucket"):
        Lakehouse.of(settings).table("bronze_events").open()


def test_a_store_that_is_away_is_a_transient_error(tables_only: Settings) -> None:
    settings = tables_only.model_copy(update={"storage_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(TransientError, match=r"GAME_EVENTS_STORAGE_ENDPOINT"):
        Lakehouse.of(settings).table("bronze_events").open()


def test_a_game_whose_prefix_is_refused_fails_alone(tables_only: Settings, store: ObjectStore) -> None:
    store.tell("deny silver_uno_events")
    task = FanOut(Lakehouse.of(tables_only), "silver", "game", ROWS.schema)
    result = run(task, ROWS.to_batches())
    assert sorted(result.files) == ["chess", "rummy"]
    assert list(result.failed) == ["uno"]
    assert "refuses access" in result.failed["uno"]


def test_a_store_that_is_away_ends_the_job_instead_of_being_waited_for_once_for_each_game(
    tables_only: Settings,
) -> None:
    away = Lakehouse.of(tables_only.model_copy(update={"storage_endpoint": "http://127.0.0.1:9"}))
    away.is_partitioned = False  # known to a worker
    task = FanOut(away, "silver", "game", ROWS.schema)
    with pytest.raises(OSError, match="Connection refused") as raised:
        list(task(iter(ROWS.to_batches())))
    assert isinstance(explain(raised.value, tables_only.lakehouse), TransientError)


def test_a_store_that_ignores_conditional_puts_is_refused_before_anything_is_written(
    s3: Settings, make_s3_pipeline: MakeS3, store: ObjectStore
) -> None:
    send(s3)
    store.tell("unsafe")
    try:
        with pytest.raises(ConfigurationError, match="If-None-Match"):
            refresh(make_s3_pipeline(s3))
        said = {c.check: c for c in run_checks({"lakehouse": environment_checks(s3)["lakehouse"]}, s3)}
        assert not said["lakehouse"].ok
    finally:
        store.tell("safe")
    assert store.names(s3.lakehouse.removeprefix(f"s3://{BUCKET}/")) == set()
    assert environment_checks(s3)["lakehouse"]() == f"{s3.lakehouse}: writable, conditional puts hold, 0 tables"
