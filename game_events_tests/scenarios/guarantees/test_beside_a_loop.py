"""Replay, erasure and maintenance beside continuous mode in another process: each goes on, no row is lost, doubled or back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from game_events.errors import ConflictError
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.integration.pipeline.test_erasure import GONE, KEY, RULES, STAYS, forgotten, places_now
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.attached_driver import start_driver
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import SCHEMA, Event, assert_sound, encoded, rejected
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import wait_all

#: Of each wave, game and gamer: one good row, one that a rule rejects, one that a rule drops.
AMOUNTS = (1, 3000, -4)
LATER = SCHEMA.replace("optional string note = 5;", "optional string note = 5; optional string more = 6;")
#: Seconds: several processes at once, on a machine that may be busy.
PATIENCE_S = 400
#: Somebody who loses a race is told to try again.
ATTEMPTS = 10


def insisting(work: Callable[[], object]) -> None:
    for attempt in range(ATTEMPTS):
        try:
            work()
            return
        except ConflictError:
            if attempt == ATTEMPTS - 1:
                raise


def test_replay_erasure_and_maintenance_beside_a_loop_of_another_process_lose_double_and_bring_back_nothing(
    make_settings: MakeSettings, make_pipeline: MakePipeline, spark: SparkSession, stack: StackState, tmp_path: Path
) -> None:
    known: list[Event] = []
    hidden: list[Event] = []
    with registry_proxy(stack.schema_registry_url) as proxy:
        settings = make_settings(schema_registry_url=proxy.url, erasure_key=KEY, rules=RULES)
        later = register(make_settings(), LATER)
        proxy.hide(later)

        def wave(*games: str, schema_id: int, into: list[Event]) -> None:
            events = [Event(g, amount, gamer=gamer) for g in games for gamer in (GONE, STAYS) for amount in AMOUNTS]
            frame = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
            send_values(settings, [frame + encoded(event) for event in events])
            into += events

        def kept() -> list[Event]:
            return [e for e in known + hidden if e.gamer == STAYS]

        usual = register(make_settings(), SCHEMA)
        wave("chess", "go", schema_id=usual, into=known)
        wave("chess", schema_id=later, into=hidden)
        log = tmp_path / "loop.log"
        timing = {"poll_interval_s": "0.05", "gold_interval_s": "0", "max_records_per_batch": "20"}
        loop = start_driver(settings, spark, log, work="loop", erasure_key=KEY, rules=json.dumps(RULES), **timing)
        try:
            until(lambda: count(settings, "gold_unified_player_agg"), PATIENCE_S, what="the loop's first rows")
            until(lambda: count(settings, BRONZE) == len(known), PATIENCE_S, what="what decodes")
            assert rows(settings, QUARANTINE, "SELECT count(*) FROM t WHERE layer = 'bronze'") == [(len(hidden),)]
            for number in range(3):
                wave("chess", f"new_{number}", schema_id=usual, into=known)
                insisting(lambda: maintain(make_pipeline(settings), RunReport()))
                if number == 0:
                    # The loop sees that the schema became known, too: whoever comes first brings the rows.
                    proxy.show_all()
                    insisting(lambda: replay(make_pipeline(settings), RunReport(), ReplaySelection()))
                if number == 1:
                    insisting(lambda: forgotten(make_pipeline(settings), vacuum=True))
            until(lambda: count(settings, BRONZE) == len(kept()), PATIENCE_S, what="all that is left to come")
            loop.send_signal(signal.SIGTERM)
            assert wait_all([loop], PATIENCE_S) == [0], log.read_text()
        finally:
            loop.kill()
            loop.wait()
        assert refresh(make_pipeline(settings)).success
    assert_sound(make_pipeline(settings))
    assert count(settings, BRONZE) == len(kept())
    assert len(rejected(settings)) == sum(e.amount == 3000 for e in kept())
    replayed = "SELECT count(*) FROM t WHERE layer = 'bronze' AND replayed_batch IS NULL"
    assert rows(settings, QUARANTINE, replayed) == [(0,)]
    assert places_now(settings, GONE) == []
    wrong = "SELECT count(*), count(DISTINCT _kafka_offset) FROM t"
    assert rows(settings, BRONZE, wrong) == [(len(kept()), len(kept()))]
