"""Killed in the middle of a full refresh, a redecode, a replay, or in a worker: finished by the next run, or it never was."""

from __future__ import annotations

from pathlib import Path

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.quarantine import listed_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.fixtures.crashes import Crash
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, rows
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.waves import GAMES, end_orphans, send, start_run, versions, wait_all

A_WEEK_S = 7 * 86_400.0


def lists(root: str) -> list[str]:
    """Lists of full refreshes beside quarantine."""
    return sorted(f.name for f in Path(root, QUARANTINE).glob("_full_refresh-*.json"))


def test_full_refreshes_killed_at_any_point_are_finished_or_did_not_happen_and_leave_nothing_behind_in_the_end(
    make_settings: MakeSettings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    settings = make_settings(allow_bronze_full_refresh=True)
    sent = send(settings, version=1, poison=0.5)
    refresh(make_pipeline(settings))

    crash("silver_replanned", "replace_silver", using=settings)
    assert_books_balance(settings, sent)

    before = versions(settings)
    crash("reset_staged", "replace_bronze", using=settings)
    changed = {n for n, v in versions(settings).items() if v != before[n]} - {"schemas", "event_log"}
    assert changed == set()
    assert len(lists(settings.lakehouse)) == 1
    quarantine = make_pipeline(settings).quarantine
    # What a vacuum must leave alone: until the next run these rows are nowhere else.
    crash("reset_committed", "replace_bronze", using=settings)
    assert set(listed_files(make_pipeline(settings), A_WEEK_S)) <= {f.name for f in Path(quarantine.uri).glob("*.parquet")}
    assert len(lists(settings.lakehouse)) == 2

    sent = sent.merge(send(settings, version=3))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)

    crash("reset_finished", "replace_bronze", using=settings)
    sent = sent.merge(send(settings, version=2))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    assert lists(settings.lakehouse)

    # One that nobody disturbs removes what the others have left.
    replace_bronze(make_pipeline(settings), RunReport())
    assert (lists(settings.lakehouse), listed_files(make_pipeline(settings), A_WEEK_S)) == ([], [])
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before


def test_a_redecode_killed_after_its_commit_is_done(
    make_settings: MakeSettings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    settings = make_settings()
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    held = coordinates(settings, BRONZE)
    for point in ("redecode_staged", "redecode_committed"):
        before = versions(settings)[BRONZE]
        crash(point, "redecode")
        assert (versions(settings)[BRONZE] > before) == (point == "redecode_committed")
        assert coordinates(settings, BRONZE) == held
    sent = sent.merge(send(settings, version=3))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    redecode(make_pipeline(settings), RunReport())
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


def test_a_replay_killed_at_any_point_brings_each_row_once(
    make_settings: MakeSettings, make_pipeline: MakePipeline, crash: Crash, stack: StackState
) -> None:
    with registry_proxy(stack.schema_registry_url) as proxy:
        settings = make_settings(schema_registry_url=proxy.url)
        sent = send(make_settings(), version=2)
        proxy.hide(sent.schema_ids[2])
        assert refresh(make_pipeline(settings)).success
        assert (count(settings, BRONZE), count(settings, QUARANTINE)) == (0, sent.records_total)
        proxy.show_all()
        for point in ("replay_staged", "replay_committed", "replay_noted"):
            crash(point, using=settings)
            if point == "replay_committed":
                # Once more an unknown one, so that there is something to replay again.
                more = send(make_settings(), version=3, poison=0)
                proxy.hide(more.schema_ids[3])
                sent = sent.merge(more)
                refresh(make_pipeline(settings))
                proxy.show_all()
        assert refresh(make_pipeline(settings)).success
        bronze = coordinates(settings, BRONZE)
        assert len(bronze) == len(set(bronze)) == sent.decodable
        assert sorted(c for g in GAMES for c in coordinates(settings, f"silver_{g}_events")) == bronze
        replayed = rows(settings, QUARANTINE, "SELECT count(*), count(replayed_batch) FROM t")
        assert replayed == [(sent.records_total, sent.decodable)]


def test_a_worker_killed_while_it_writes_one_games_rows_fails_this_game_alone_and_the_next_run_has_every_row_once(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    settings = make_settings()
    sent = send(settings)
    run = start_run(settings, tmp_path / "run", "file_open:silver_spades_events")
    assert wait_all([run], 900) == [1], (tmp_path / "run" / "stderr").read_text()
    end_orphans(settings)
    assert coordinates(settings, "silver_rummy_events") != []
    assert coordinates(settings, "silver_spades_events") == []
    sent = sent.merge(send(settings, version=2))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
