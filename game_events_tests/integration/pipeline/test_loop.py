"""Continuous mode on real parts: what a user gets from a loop that goes on while the topic changes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import psutil
import pytest

from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events.plugins.local.servers import local_stack
from game_events_tests.support.reconciliation import assert_books_balance, count, gold, rows
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.waves import versions


def wave(*games, **options):
    return Simulation(games=games, records_per_game_and_version=20, gamers_per_game=5, **options)


@contextlib.contextmanager
def looping(pipeline, **options):
    """A loop at work in a thread; it must end when it is told to, and must not have failed."""
    cycles, failures = [], []
    loop = Loop(pipeline, on_cycle=cycles.append, **options)

    def work():
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    loop.cycles = cycles
    try:
        yield loop
    finally:
        loop.stop.set()
        thread.join(60)
    assert not thread.is_alive(), "the stop switch did not end the loop"
    if failures:
        raise failures[0]


@pytest.mark.every_spark
def test_a_loop_follows_new_records_games_and_versions_and_is_idle_without_cost(make_settings, make_pipeline):
    settings = make_settings(poll_interval_s=0.1, gold_interval_s=0)
    sent = produce(settings, wave("rummy", "uno", versions=1, poison_share=0.1))
    with looping(make_pipeline(settings)) as loop:
        until(lambda: loop.report.total.rows("unified"), what="the first wave in the unified table")
        sent = sent.merge(produce(settings, wave("rummy", "chess", versions=(2, 3), seed=1)))
        until(lambda: loop.report.total.rows("silver") == sent.decodable, what="the second wave in silver")
        until(lambda: loop.report.state == "idle", what="an idle loop")
        before, looks = versions(settings), loop.report.looks
        until(lambda: loop.report.looks >= looks + 5, what="looks of an idle loop")
        assert versions(settings) == before, "an idle loop made a commit"
    assert loop.report.state == "stopped"
    assert_books_balance(settings, sent)
    total = loop.report.total
    assert total.rows("bronze") == total.rows("silver") == sent.decodable
    assert sum(total.rejected.values()) == sum(sent.poison.values())
    assert {"col_custom_1", "col_custom_2"} <= {c for t in total.of("bronze") for c in t.new_columns}
    # Every record was counted on its way to every layer.
    assert {layer: times.total for layer, times in total.latency.items()} == dict.fromkeys(
        ("bronze", "silver", "gold", "unified"), sent.records_total
    )
    assert loop.report.cycles == len([c for c in loop.cycles if c.tables])
    # Whoever runs next has nothing to repair.
    assert refresh(make_pipeline(settings)).tables == []


@pytest.mark.scenario
def test_gold_keeps_its_own_interval_and_follows_at_the_end_of_a_bounded_loop_or_in_any_run(make_settings, make_pipeline):
    settings = make_settings(poll_interval_s=0.1, gold_interval_s=3600)
    first = produce(settings, wave("rummy"))
    with looping(make_pipeline(settings)) as loop:
        # The first cycle has no gold before it.
        until(lambda: loop.report.total.rows("gold"), what="the first gold")
        old = gold(settings, "rummy")
        both = first.merge(produce(settings, wave("rummy", seed=1)))
        until(lambda: loop.report.total.rows("silver") == both.decodable, what="the second wave in silver")
        until(lambda: loop.report.state == "idle", what="an idle loop")
        assert gold(settings, "rummy") == old, "gold was refreshed before its interval was over"
        assert loop.report.total.latency["gold"].total == first.records_total
        assert reconcile(make_pipeline(settings)).passed
    assert gold(settings, "rummy") == old, "a stop must not begin new work"
    refresh(make_pipeline(settings))
    assert_books_balance(settings, both)

    all_three = both.merge(produce(settings, wave("rummy", seed=2)))
    loop = Loop(make_pipeline(settings), duration_s=2)
    loop._gold_at = float("inf")  # as if gold had been refreshed just now
    loop.run()
    assert_books_balance(settings, all_three)


def test_other_work_goes_first_and_the_state_says_so(make_settings, make_pipeline):
    settings = make_settings(poll_interval_s=0.1)
    produce(settings, wave("rummy"))
    urgent = ["run 1 of redecode goes first"]
    with looping(make_pipeline(settings), wait_for=lambda: urgent[0]) as loop:
        until(lambda: (loop.report.state, loop.report.why) == ("paused", urgent[0]), what="a paused loop")
        assert count(settings, "bronze_events") == 0
        urgent[0] = None
        until(lambda: loop.report.total.rows("silver") == 40, what="the rows after the pause")


def test_a_game_that_fails_is_in_the_report_and_comes_back_while_the_others_go_on(make_settings, make_pipeline):
    settings = make_settings(poll_interval_s=0.1, gold_interval_s=0)
    sent = produce(settings, wave("rummy", "uno"))
    pipeline = make_pipeline(settings)
    blocked = pipeline.lakehouse.silver("uno").local_path
    blocked.parent.mkdir(parents=True)
    blocked.write_text("not a folder")
    with looping(pipeline) as loop:
        until(lambda: loop.report.total.errors, what="the failure of uno")
        until(lambda: gold(settings, "rummy"), what="rummy's gold")
        assert {t.game for t in loop.report.total.errors} == {"uno"}
        blocked.unlink()
        sent = sent.merge(produce(settings, wave("rummy", seed=1)))
        until(lambda: gold(settings, "uno"), what="uno's gold")
        until(lambda: loop.report.state == "idle", what="an idle loop")
    assert loop.report.total.success
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_a_broker_that_goes_away_and_comes_back_costs_waiting_and_no_record(make_settings, make_pipeline, tmp_path, no_waiting):
    folder = tmp_path / "own-stack"
    state = local_stack.up(folder)
    no_waiting.add(state.kafka_bootstrap_servers)
    try:
        settings = make_settings(
            kafka_bootstrap_servers=state.kafka_bootstrap_servers,
            schema_registry_url=state.schema_registry_url,
            poll_interval_s=0.1,
            gold_interval_s=0,
        )
        sent = produce(settings, wave("rummy", "uno"))
        with looping(make_pipeline(settings)) as loop:
            until(lambda: loop.report.total.rows("unified"), what="the first wave")
            broker = psutil.Process(state.kafka.pid)
            broker.kill()
            broker.wait(30)
            until(lambda: loop.report.state == "waiting", what="a waiting loop")
            assert "Kafka" in loop.report.why
            again = local_stack.up(folder)
            assert again.kafka_bootstrap_servers == state.kafka_bootstrap_servers
            sent = sent.merge(produce(settings, wave("rummy", "chess", seed=1)))
            until(lambda: loop.report.total.rows("silver") == sent.decodable, what="the wave after the restart")
            until(lambda: loop.report.state == "idle", what="an idle loop")
        assert loop.report.retries > 0
        assert_books_balance(settings, sent)
    finally:
        local_stack.down(folder, delete_data=True)


@pytest.mark.scenario
def test_the_loop_says_little(make_settings, spark, caplog):
    settings = make_settings(poll_interval_s=0.1, gold_interval_s=0)
    produce(settings, wave("rummy"))
    pipeline = dataclasses.replace(Pipeline(settings, lambda: spark), quiet=True)
    with caplog.at_level("INFO", "game_events"), looping(pipeline) as loop:
        until(lambda: loop.report.total.rows("unified"), what="the first wave")
        for seed in (1, 2, 3):
            before = loop.report.cycles
            produce(settings, wave("rummy", seed=seed))
            until(lambda before=before: loop.report.cycles > before, what="a cycle")
    said = [r.getMessage() for r in caplog.records if r.name.startswith("game_events")]
    assert len([line for line in said if line.startswith("continuous: ")]) == 1, said
    assert len(said) <= 4, said
    assert rows(settings, "silver_rummy_events", "SELECT count(DISTINCT _batch) FROM t")[0][0] >= 2
