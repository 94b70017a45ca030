"""A full refresh of bronze: refused until allowed, atomic, followed by every layer, and finished whatever crashes."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake

from game_events.errors import ConfigurationError, ConflictError
from game_events.lakehouse.data.columns import QUARANTINE_COLUMNS
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.audits import gold_equals_recompute
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_unique
from game_events.pipeline.quarantine import complete_quarantine
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, selection_of
from game_events_tests.support.docs.pages import DOCS, RUN_BY, blocks
from game_events_tests.support.docs.printed import missing
from game_events_tests.support.offsets import by_partition
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, rows
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.quality import Event, assert_sound, in_silver, rejected, rule, send_events
from game_events_tests.support.worlds.waves import (
    GAMES,
    assert_gold_follows_silver,
    at_point,
    power_cut_at,
    send,
    versions,
)


@pytest.fixture
def settings(make_settings):
    return make_settings(allow_bronze_full_refresh=True, max_records_per_batch=20)


def everything(pipeline):
    """Replace every layer."""
    return selection_of(pipeline, full_refresh=["bronze", "all"])


def expire(settings, before):
    """Kafka forgets the records before these offsets of its partitions."""
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap_servers})
    asked = [TopicPartition(settings.kafka_topic, p, o) for p, o in before.items()]
    for done in admin.delete_records(asked).values():
        done.result()


def assert_nothing_to_do(settings, make_pipeline):
    before = versions(settings)
    report = refresh(make_pipeline(settings))
    assert (report.tables, report.errors) == ([], [])
    assert versions(settings) == before


@pytest.mark.scenario
def test_bronze_is_protected_and_the_refusal_names_the_setting_and_what_would_be_lost(settings, make_settings, make_pipeline):
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    low = {p.number: end - 3 for p, end in make_pipeline(settings).source.snapshot().latest.items()}
    expire(settings, low)
    gone = {table: sum(o < low[p] for _, p, o in coordinates(settings, table)) for table in (BRONZE, QUARANTINE)}
    protected = make_settings()
    before = versions(settings)
    with pytest.raises(ConfigurationError) as refused:
        refresh(make_pipeline(protected), selection=selection_of(make_pipeline(protected), full_refresh=["bronze_events"]))
    said = str(refused.value)
    assert "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true" in said
    topic = settings.kafka_topic
    assert f"{topic}[0] from offset {low[0]}, {topic}[1] from offset {low[1]}" in said
    assert f"{gone[BRONZE]} of the {sent.decodable} rows of bronze_events" in said
    assert f"{gone[QUARANTINE]} of the {sum(sent.poison.values())} undecodable rows" in said
    # docs/refresh.md shows it.
    (shown,) = [block.text for block in blocks(DOCS / "refresh.md") if block.mark == RUN_BY]
    assert missing(shown, f"error: {said}".replace(settings.kafka_topic, "game_events")) == ""
    assert versions(settings) == before

    # Asked for everything, the other layers are replaced and bronze goes on as usual.
    more = send(settings, version=3)
    report = refresh(make_pipeline(protected), selection=selection_of(make_pipeline(protected), full_refresh=["all"]))
    assert any("bronze_events is protected and was not replaced" in notice for notice in report.notices)
    assert report.rows("bronze") == more.decodable
    assert_books_balance(settings, sent.merge(more))
    assert_nothing_to_do(settings, make_pipeline)

    # Allowed: what has expired is gone from every layer, and counted.
    held = {table: count(settings, table) for table in (BRONZE, QUARANTINE)}
    report = refresh(make_pipeline(settings), selection=everything(make_pipeline(settings)))
    assert report.success
    assert report.expired == gone[BRONZE] + gone[QUARANTINE]
    assert any(f"{gone[BRONZE]} of the {held[BRONZE]} rows of bronze_events" in notice for notice in report.notices)
    assert {table: count(settings, table) for table in held} == {t: n - gone[t] for t, n in held.items()}
    assert sorted(c for g in GAMES for c in coordinates(settings, f"silver_{g}_events")) == coordinates(settings, BRONZE)
    assert_gold_follows_silver(settings, *GAMES)
    assert reconcile(make_pipeline(settings)).passed
    assert_nothing_to_do(settings, make_pipeline)


@pytest.mark.scenario
def test_readers_see_the_old_tables_or_the_new_and_records_decode_with_what_is_known_now(
    settings, make_settings, make_pipeline, stack
):
    """Columns keep their names, other layers' rows of quarantine stay, batches go on, and increments follow."""
    first = send(settings, version=2)
    with registry_proxy(stack.schema_registry_url) as proxy:
        hidden = make_settings(schema_registry_url=proxy.url, max_records_per_batch=20)
        proxy.hide(first.schema_ids[2])
        refresh(make_pipeline(hidden))
    assert count(settings, BRONZE) == 0
    second = send(settings, version=3)
    load_bronze(make_pipeline(settings), RunReport())
    refresh(make_pipeline(settings))  # replays the first wave
    sent = first.merge(second)
    assert_books_of(settings, sent)
    others = pa.table({"layer": ["silver"], "reason": ["RULE"]}).select(["layer", "reason"])
    others = pa.Table.from_pylist(others.to_pylist(), schema=QUARANTINE_COLUMNS)
    write_deltalake(f"{settings.lakehouse}/{QUARANTINE}", others, mode="append")
    columns = [f.name for f in DeltaTable(f"{settings.lakehouse}/{BRONZE}").schema().fields]
    handle = make_pipeline(settings).bronze.open()
    old_id, batch = handle.metadata().id, handle.transaction_version("batch")
    polled = {table: set() for table in (BRONZE, "silver_uno_events", "gold_uno_player_agg")}
    counts = {table: "count(*)" if "gold" not in table else "sum(session_count)" for table in polled}
    stop = threading.Event()

    def poll():
        while not stop.wait(0.05):
            for table, seen in polled.items():
                seen.update(rows(settings, table, f"SELECT {counts[table]} FROM t"))

    reader = threading.Thread(target=poll)
    reader.start()
    report = refresh(make_pipeline(settings), selection=everything(make_pipeline(settings)))
    stop.set()
    reader.join()

    assert report.success
    uno = sum(sent.records["uno"].values())
    assert polled == {BRONZE: {(sent.decodable,)}, "silver_uno_events": {(uno,)}, "gold_uno_player_agg": {(uno,)}}
    assert [f.name for f in DeltaTable(f"{settings.lakehouse}/{BRONZE}").schema().fields] == columns
    handle = make_pipeline(settings).bronze.open()
    assert handle.metadata().id == old_id
    assert handle.transaction_version("batch") > batch
    assert report.batches == [batch + 1], "several slices, one commit"
    # Every row was decoded from Kafka now: none came by a replay, none is held that decodes.
    found = rows(settings, QUARANTINE, "SELECT layer, count(*), count(replayed_batch) FROM t GROUP BY 1 ORDER BY 1")
    assert found == [("bronze", sum(sent.poison.values()), 0), ("silver", 1, 0)]
    assert not list(Path(settings.lakehouse, QUARANTINE).glob("_full_refresh-*"))
    DeltaTable(f"{settings.lakehouse}/{QUARANTINE}").delete("layer = 'silver'")
    assert_books_balance(settings, sent)
    assert reconcile(make_pipeline(settings)).passed
    assert_nothing_to_do(settings, make_pipeline)
    sent = sent.merge(send(settings, version=4, games=(*GAMES, "chess")))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    for check in (offsets_continuous, offsets_unique, gold_equals_recompute):
        found = check(make_pipeline(settings))
        assert found.passed, found.summary


def assert_books_of(settings, sent):
    """Every decodable record is in bronze, once."""
    bronze = coordinates(settings, BRONZE)
    assert len(bronze) == len(set(bronze)) == sent.decodable


@pytest.mark.scenario
def test_a_full_refresh_that_is_killed_is_finished_by_the_next_run(settings, make_pipeline, crash):
    """What a kill at its other points leaves: `scenarios/guarantees/test_crashes_of_other_work.py`."""
    sent = send(settings, version=1)
    assert sent.poison
    refresh(make_pipeline(settings))
    before = versions(settings)
    crash("reset_committed", "replace_bronze")
    assert {name for name, version in versions(settings).items() if version != before[name]} == {BRONZE}

    sent = sent.merge(send(settings, version=3))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    assert_nothing_to_do(settings, make_pipeline)
    # And once more, undisturbed.
    assert refresh(make_pipeline(settings), selection=everything(make_pipeline(settings))).success
    assert_books_balance(settings, sent)
    assert reconcile(make_pipeline(settings)).passed


@pytest.mark.scenario
def test_between_its_two_commits_no_replay_and_no_run_doubles_or_loses_a_row(settings, make_settings, make_pipeline, stack):
    sent = send(settings, version=2)
    with registry_proxy(stack.schema_registry_url) as proxy:
        proxy.hide(sent.schema_ids[2])
        refresh(make_pipeline(make_settings(schema_registry_url=proxy.url)))
    # All rows are held as unknown; the refresh decodes them, and quarantine does not know of it yet.
    with power_cut_at("reset_committed"):
        replace_bronze(make_pipeline(settings), RunReport())
    assert (count(settings, BRONZE), count(settings, QUARANTINE)) == (sent.decodable, sent.records_total)
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 0
    more = send(settings, version=3)
    load_bronze(make_pipeline(settings), RunReport())
    sent = sent.merge(more)
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)

    # A slice that a rival decides on between the two commits stays decided.
    with power_cut_at("reset_committed"):
        replace_bronze(make_pipeline(settings), RunReport())
    sent = sent.merge(send(settings, version=1, poison=0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("game_events.pipeline.bronze.load.complete_full_refresh", lambda *_: None)
        load_bronze(make_pipeline(settings), RunReport())
    complete_quarantine(make_pipeline(settings), RunReport())
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_a_run_that_commits_meanwhile_wins_and_the_full_refresh_says_so_and_changes_nothing(
    settings, make_pipeline, monkeypatch
):
    sent = send(settings)
    refresh(make_pipeline(settings))
    more = []

    def commit_more():
        more.append(send(settings, version=2))
        refresh(make_pipeline(settings))

    at_point(monkeypatch, "reset_staged", commit_more)
    with pytest.raises(ConflictError, match="Nothing was changed: run again while no other run is at work"):
        replace_bronze(make_pipeline(settings), RunReport())
    sent = sent.merge(more[0])
    assert_books_balance(settings, sent)
    files = {f.name for f in Path(settings.lakehouse, BRONZE).glob("*.parquet")}
    assert files == {Path(uri).name for uri in DeltaTable(f"{settings.lakehouse}/{BRONZE}").file_uris()}
    assert not list(Path(settings.lakehouse, QUARANTINE).glob("_full_refresh-*"))


@pytest.mark.scenario
@pytest.mark.parametrize("point", ["silver_staged", "gold_staged"])
def test_a_run_whose_bronze_is_replaced_under_it_brings_nothing_of_the_old_one_back(
    point, settings, make_pipeline, monkeypatch
):
    send(settings)
    refresh(make_pipeline(settings))
    end = by_partition(make_pipeline(settings).source.snapshot().latest)
    send(settings, version=2)
    load_bronze(make_pipeline(settings), RunReport())

    def replaced():
        expire(settings, end)
        assert refresh(make_pipeline(settings), selection=everything(make_pipeline(settings))).success

    at_point(monkeypatch, point, replaced)
    refresh_downstream(make_pipeline(settings), RunReport())
    for _ in range(2):
        assert count(settings, BRONZE) == 18
        assert sorted(c for g in GAMES for c in coordinates(settings, f"silver_{g}_events")) == coordinates(settings, BRONZE)
        assert_gold_follows_silver(settings, *GAMES)
        assert refresh(make_pipeline(settings)).success
    assert_nothing_to_do(settings, make_pipeline)


@pytest.mark.scenario
def test_rows_that_rules_reject_are_decided_anew_for_a_bronze_that_was_replaced(make_settings, make_pipeline):
    wave = [Event("uno", 1), Event("uno", -1), Event("chess", 2), Event("chess", -2)]
    first = make_settings(allow_bronze_full_refresh=True, rules=[rule("positive", "amount > 0", "quarantine")])
    send_events(first, wave)
    assert refresh(make_pipeline(first)).success
    assert (in_silver(first), rejected(first)) == ({"chess": [2], "uno": [0]}, [1, 3])
    changed = make_settings(allow_bronze_full_refresh=True, rules=[rule("negative", "amount < 0", "quarantine")])
    for _ in range(2):
        assert refresh(make_pipeline(changed), selection=everything(make_pipeline(changed))).success
        assert (in_silver(changed), rejected(changed)) == ({"chess": [3], "uno": [1]}, [0, 2])
        assert_sound(make_pipeline(changed))
    send_events(changed, wave)
    assert refresh(make_pipeline(changed)).success
    assert_sound(make_pipeline(changed))
    assert_nothing_to_do(changed, make_pipeline)
