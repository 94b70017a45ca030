"""Rows of silver and gold at a real HTTP receiver: each at least once, repeated calls only under the same key."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events.errors import ConfigurationError, ConflictError, TransientError
from game_events.lakehouse.tables import EXPORT_CALLS
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export import rows
from game_events.plugins.export import run as export
from game_events.plugins.export.rows import OnReplaced
from game_events.plugins.export.run import export_status, replay_failed_calls
from game_events.plugins.export.tables import ExportTables
from game_events.plugins.export.worker import SendChunks
from game_events_tests.support.pipelines import at_progress
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.worlds.export import World, offsets_of, only_same_calls_were_repeated, texts_below

TOKEN = "planted-token-51c2"


def test_every_row_arrives_once_in_calls_of_so_many_rows_and_then_only_what_is_new(world: World, tmp_path: Path):
    world.events(chess=25, uno=7)
    with receiving(tmp_path / "log") as receiver:
        done = world.export(receiver, rest_rows_per_call=10).parts["export"]
        assert done is not None
        assert (done.planned_rows, done.delivered_rows, done.planned_chunks, done.calls) == (32, 32, 4, 4)
        assert sorted(call["rows"] for call in receiver.calls) == [5, 7, 10, 10]
        assert sorted(row["_kafka_offset"] for row in receiver.rows) == world.offsets()
        row = next(r for r in receiver.rows if r["_kafka_offset"] == 0)
        assert row == {
            "game_name": "chess",
            "gamer_id": "gamer-0",
            "event_timestamp": "2026-11-21T10:00:00.000000Z",
            "score": "18446744073709551615",
            "payload": "AP8=",
            "parts": [{"price": "1.50", "at": "2026-11-21T10:00:00.000000Z"}],
            "note": 'a "quoted" ünïcode',
            "_kafka_topic": "events",
            "_kafka_partition": 0,
            "_kafka_offset": 0,
            "_batch": 1,
        }
        assert next(r for r in receiver.rows if r["_kafka_offset"] == 1)["note"] is None

        assert world.export(receiver).parts["export"].calls == 0
        world.events(uno=3)
        world.events(uno=2, go=1)
        done = world.export(receiver, rest_rows_per_call=1, rest_body="object", rest_bytes_per_call=1_000).parts["export"]
        assert (done.delivered_rows, done.calls) == (6, 6)
        assert sorted(row["_kafka_offset"] for row in receiver.rows) == world.offsets()
        assert export_status(world.pipeline())["delivered"] == {"chunks": 10, "rows": 38}
    assert world.pipeline().lakehouse.table(EXPORT_CALLS).open().get_add_actions().num_rows == 0


@pytest.mark.scenario
def test_a_receiver_that_throttles_fails_hangs_closes_or_accepts_and_times_out_gets_every_row(world: World, tmp_path: Path):
    world.events(chess=60, uno=60)
    faults = {"throttle_share": 0.1, "error_share": 0.1, "hang_share": 0.08, "close_share": 0.1}
    with receiving(tmp_path / "log", **faults, accept_then_timeout_share=0.1, retry_after_s=1, seed=4) as receiver:
        done = world.export(
            receiver, rest_rows_per_call=2, rest_max_attempts=30, rest_calls_per_task=8, rest_bearer_token=TOKEN
        ).parts["export"]
        assert (done.delivered_rows, done.failed_rows, done.waiting_chunks) == (120, 0, 0)
        assert offsets_of(receiver) == world.offsets()
        only_same_calls_were_repeated(receiver)
        assert {call["status"] for call in receiver.calls} == {200, 429, 503, "hang", "close", "accept_then_timeout"}
        assert done.calls == len(receiver.calls)
        assert done.answers["200"] == 60
        assert max(receiver.keys.values()) > 1, "a call that was accepted and not answered was repeated"
        _waited_as_told(receiver.calls)


def _waited_as_told(calls):
    """No call came under a key within the second for which it was told to wait."""
    throttled: dict[str, float] = {}
    for call in calls:
        assert call["time"] >= throttled.get(call["key"], 0) + 1.0
        if call["status"] == 429:
            throttled[call["key"]] = call["time"]


def test_what_is_refused_is_a_failed_call_that_a_replay_sends_once_more_under_its_key(world: World, tmp_path: Path):
    world.events(chess=30, uno=10)
    secret = {"rest_bearer_token": TOKEN}
    with receiving(tmp_path / "one", refuse_share=0.4, seed=3) as receiver:
        done = world.export(receiver, rest_rows_per_call=3, **secret).parts["export"]
        taken, failed = offsets_of(receiver), done.failed_rows
        assert failed + len(taken) == 40
        assert failed == sum(call["rows"] for call in receiver.calls if call["status"] == 422) > 0
        refused = {call["key"] for call in receiver.calls if call["status"] == 422}
        found = export_status(world.pipeline())
        assert (found["dead"]["rows"], found["waiting"]["rows"]) == (failed, 0)
        (first, *_) = found["dead_letters"]
        assert first["status"] == 422
        assert "***" in first["answer"]
        assert world.export(receiver).parts["export"].calls == 0, "failed calls wait for a person"
    assert TOKEN.encode() not in texts_below(tmp_path / "lakehouse")

    with receiving(tmp_path / "two") as receiver:
        pipeline = world.pipeline(receiver)
        assert replay_failed_calls(pipeline, [404]) == (0, 0)
        assert replay_failed_calls(pipeline) == (len(refused), failed)
        assert replay_failed_calls(pipeline) == (0, 0), "they are about to be sent"
        done = world.export(receiver).parts["export"]
        assert done.delivered_rows == failed
        assert set(receiver.keys) == refused
        assert sorted([*taken, *offsets_of(receiver)]) == world.offsets()
        assert export_status(pipeline)["dead"]["rows"] == 0
        assert replay_failed_calls(pipeline) == (0, 0)


def test_rows_that_are_not_taken_in_all_attempts_are_failed_calls_and_a_receiver_that_takes_nothing_leaves_them_waiting(
    world: World, tmp_path: Path
):
    world.events(chess=40)
    with receiving(tmp_path / "log", error_share=1.0) as receiver:
        away = receiver.url
        with pytest.raises(TransientError, match=r"\d+ calls in a row were not taken in 2 attempts, the last: HTTP 503"):
            world.export(receiver, rest_rows_per_call=1, rest_max_attempts=2)
    with pytest.raises(TransientError, match="not reachable"):
        world.export(away)
    found = export_status(world.pipeline())
    assert (found["waiting"]["rows"], found["dead"]["rows"], found["delivered"]["rows"]) == (40, 0, 0)

    with receiving(tmp_path / "locked", authorization=("Authorization", f"Bearer {TOKEN}")) as receiver:
        with pytest.raises(ConfigurationError, match="does not let us in"):
            world.export(receiver, rest_preflight="")
        assert export_status(world.pipeline())["waiting"]["rows"] == 40
    # Some rows are at fault, not the receiver: it takes others.
    with receiving(tmp_path / "half", error_share=0.25, seed=2) as receiver:
        done = world.export(receiver, rest_max_attempts=1, rest_calls_per_task=1).parts["export"]
        assert done.failed_rows > 0
        assert done.failed_rows + len(offsets_of(receiver)) == 40
        assert replay_failed_calls(world.pipeline(), [503])[1] == done.failed_rows


def test_replaced_rows_are_sent_again_only_if_somebody_says_so(world: World, tmp_path: Path):
    world.events(chess=5, uno=5)
    with receiving(tmp_path / "log") as receiver:
        assert world.export(receiver).parts["export"].delivered_rows == 10
        world.events(chess=2, uno=3, generation={"chess": 1})
        report = world.export(receiver)
        assert report.parts["export"].delivered_rows == 3, "another game is not held up"
        assert list(report.parts["export"].held) == ["chess"]
        assert [(t.game, "--resend chess" in str(t.error)) for t in report.errors] == [("chess", True)]
        assert world.export(receiver, rest_on_replaced="go_on").parts["export"].delivered_rows == 2
        before = set(receiver.keys)

        world.events(chess=1, generation={"chess": 2})
        assert world.export(receiver, OnReplaced(resend=frozenset({"chess"}))).parts["export"].delivered_rows == 8
        assert not before & {call["key"] for call in receiver.calls[-1:]}, "under another key, or the receiver would drop it"
        world.events(chess=4, generation={"chess": 3})
        assert world.export(receiver, OnReplaced(go_on=frozenset({"chess"}))).parts["export"].calls == 0
        world.events(chess=1)
        assert world.export(receiver).parts["export"].delivered_rows == 1
        assert world.export(receiver).parts["export"].calls == 0


def test_of_gold_the_players_with_new_events_are_sent_as_they_are_now(world: World, tmp_path: Path):
    world.events(chess=14, uno=7)
    world.gold()
    gold = {"rest_source": "gold", "rest_rows_per_call": 3}
    with receiving(tmp_path / "log") as receiver:
        assert world.export(receiver, **gold).parts["export"].delivered_rows == 14
        assert receiver.rows[0].keys() == {"game_name", "gamer_id", "session_count", "min_timestamp", "max_timestamp"}
        world.events(chess=2)
        assert world.export(receiver, **gold).parts["export"].calls == 0, "gold has not followed yet"
        world.gold()
        assert world.export(receiver, **gold).parts["export"].delivered_rows == 2
        newest = {(r["game_name"], r["gamer_id"]): r["session_count"] for r in receiver.rows}
        assert [newest["chess", f"gamer-{n}"] for n in range(7)] == [3, 3, 2, 2, 2, 2, 2]
        assert world.export(receiver, **gold).parts["export"].calls == 0


def test_with_a_cap_one_task_sends_and_counts_the_calls_of_the_micro_batch_before(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "SLICE_ROWS", 10)
    jobs: list[SendChunks] = []
    monkeypatch.setattr(export, "SendChunks", lambda *parts: jobs.append(SendChunks(*parts)) or jobs[-1])
    for _ in range(2):
        world.events(chess=10)
    with receiving(tmp_path / "log") as receiver:
        done = world.export(receiver, rest_rows_per_call=1, rest_calls_per_min=1_000).parts["export"]
        assert (done.delivered_rows, done.tasks) == (20, 1)
        assert offsets_of(receiver) == world.offsets()
    assert [len(job.counted) for job in jobs] == [0, 10]
    assert all(0 <= age < 60 for age in jobs[1].counted)


def test_of_two_runs_at_once_the_later_one_goes_on_and_no_row_comes_under_two_keys(world: World, tmp_path: Path):
    world.events(chess=10)
    with receiving(tmp_path / "log") as receiver:
        pipeline = world.pipeline(receiver)

        def overtake(message: str) -> None:
            if " calls to " in message:
                export._take_over(ExportTables.of(pipeline.lakehouse, "gamer_id"), "another exporter's")

        with pytest.raises(ConflictError, match="another run of the export has taken over"):
            export.export_rows(at_progress(pipeline, overtake), RunReport())
        assert world.export(receiver).parts["export"].delivered_rows == 10
        only_same_calls_were_repeated(receiver)
        assert offsets_of(receiver) == world.offsets()
