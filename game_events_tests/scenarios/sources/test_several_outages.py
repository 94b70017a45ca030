"""Continuous mode over two clusters, of which one is killed and comes back: the other is read all the time, nothing is lost."""

from __future__ import annotations

import threading

import pytest

from game_events.config.settings import load_settings
from game_events.pipeline.runs.loop import Loop
from game_events.plugins.local.servers import local_stack
from game_events.sources.several import source as several
from game_events_tests.support.servers.own_stack import OwnStack
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import SCHEMA
from game_events_tests.support.worlds.topic import register
from game_events_tests.support.worlds.two_clusters import ELSEWHERE, amounts, assert_sound, by_source, event, remarks, send


@pytest.fixture
def second(tmp_path):
    own = OwnStack(tmp_path / "second")
    yield own
    local_stack.down(own.folder, delete_data=True)


def test_a_loop_reads_one_cluster_while_the_other_is_down_and_both_when_it_is_back(
    make_settings, make_pipeline, second, monkeypatch, no_waiting
):
    no_waiting.add(second.state.kafka_bootstrap_servers)
    monkeypatch.setattr(several, "FIRST_PAUSE_S", 1.0)
    addresses = {
        "kafka_bootstrap_servers": second.state.kafka_bootstrap_servers,
        "schema_registry_url": second.state.schema_registry_url,
    }
    settings = make_settings(sources={"eu": {}, "us": addresses}, poll_interval_s=0.1, gold_interval_s=0)
    us = load_settings(**addresses, kafka_topic=settings.kafka_topic)
    one, two = register(settings, SCHEMA), register(us, ELSEWHERE)
    send(settings, one, [event("uno", amounts(1))])
    send(us, two, [event("uno", remarks("a"))])
    loop = Loop(make_pipeline(settings))
    failures = []

    def work():
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: loop.report.total.rows("silver") == 2, what="both")
        second.kill()
        for number in range(3):
            send(settings, one, [event("uno", amounts(number))])
            until(lambda rows=number + 3: loop.report.total.rows("silver") == rows, what="the first one alone")
        until(lambda: list(loop.report.total.left_out or {}) == ["us"], what="the second one's name")
        assert "source us left out" in loop.report.summary()
        second.start()
        send(us, two, [event("uno", remarks("b"))])
        until(lambda: loop.report.total.rows("silver") == 6, what="the second one again")
        until(lambda: loop.report.total.left_out == {}, what="no name")
    finally:
        loop.stop.set()
        thread.join(60)
    assert failures == []
    assert by_source(settings) == {"eu": 4, "us": 2}
    assert_sound(make_pipeline(settings))
