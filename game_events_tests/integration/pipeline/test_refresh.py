"""The main job on real parts: what a user gets from one run after another."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from deltalake import DeltaTable

from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce, produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation, Simulation
from game_events.plugins.local.settings import DEFAULT_GAMES
from game_events.sources import source
from game_events_tests.support.offsets import by_partition
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, gold, rows
from game_events_tests.support.worlds.topic import own_settings
from game_events_tests.support.worlds.waves import assert_gold_follows_silver, versions


def columns(settings, table):
    return [f.name for f in DeltaTable(f"{settings.lakehouse}/{table}").schema().fields]


def test_games_that_nobody_listed_become_tables_and_every_record_is_in_its_place(settings, make_pipeline):
    sent = produce(settings, Simulation(poison_share=0.03, late_share=0.1, duplicate_share=0.05))

    report = refresh(make_pipeline(settings))

    assert report.success
    assert_books_balance(settings, sent)
    tables = set(Lakehouse.of(settings).names())
    per_game = {f"silver_{g}_events" for g in DEFAULT_GAMES} | {f"gold_{g}_player_agg" for g in DEFAULT_GAMES}
    assert tables == per_game | {"bronze_events", "quarantine_events", "gold_unified_player_agg", "schemas", "progress"}
    assert report.rows("bronze") == sent.decodable
    assert sum(report.rejected.values()) == sum(sent.poison.values())
    assert by_partition(report.lag) == dict.fromkeys(range(4), 0)


def test_a_new_version_and_a_new_game_arrive_without_restart_and_gold_stays_equal_to_a_recompute(settings, make_pipeline):
    pipeline = make_pipeline(settings)
    first = produce(settings, Simulation(games=("rummy",)))
    refresh(pipeline)
    assert "col_custom_4" not in columns(settings, "bronze_events")

    faults = {"late_share": 0.3, "duplicate_share": 0.2}
    second = produce(settings, Simulation(games=("rummy", "chess"), versions=(1, 5), seed=1, **faults))
    report = refresh(pipeline)

    assert_books_balance(settings, first.merge(second))
    assert_gold_follows_silver(settings, "rummy", "chess")
    assert "col_custom_4" in columns(settings, "silver_rummy_events")
    assert [t.game for t in report.of("silver") if t.new] == ["chess"]
    filled = "SELECT count(col_custom_4) FROM t"
    assert rows(settings, "silver_chess_events", filled)[0][0] > 0


def test_a_version_first_registered_while_the_run_is_reading_is_decoded_in_the_same_run(
    make_settings, make_pipeline, monkeypatch
):
    settings = make_settings(max_records_per_batch=50)
    sent = [produce(settings, Simulation(games=("rummy",), versions=(1,)))]
    asked = source.plan_micro_batch
    target = make_pipeline(settings).source.snapshot

    def produced_after_the_first_slice(now, start, until, most):
        if any(start.values()) and len(sent) == 1:
            # Registered, and written, after the run has begun; the run's end is moved so that it reaches these records.
            sent.append(produce(settings, Simulation(games=("rummy",), versions=(4,), seed=3)))
        if len(sent) > 1:
            now = target()
            until.update(now.latest)
        return asked(now, start, until, most)

    monkeypatch.setattr(source, "plan_micro_batch", produced_after_the_first_slice)
    report = refresh(make_pipeline(settings))

    assert len(report.batches) > 2
    assert_books_balance(settings, sent[0].merge(sent[1]))
    assert rows(settings, "bronze_events", "SELECT count(col_custom_3) FROM t")[0][0] > 0


def test_slices_are_contiguous_and_bounded_and_raw_values_can_be_left_out_of_bronze_but_never_out_of_quarantine(
    make_settings, make_pipeline
):
    settings = make_settings(max_records_per_batch=60, keep_raw="failures")
    sent = produce(settings, Simulation(games=("rummy", "uno"), records_per_game_and_version=50, poison_share=0.1))
    report = refresh(make_pipeline(settings))

    assert_books_balance(settings, sent)
    assert rows(settings, "bronze_events", "SELECT count(_raw_value) FROM t") == [(0,)]
    assert rows(settings, "quarantine_events", "SELECT count(_raw_value) FROM t") == [(sum(sent.poison.values()),)]

    sql = "SELECT _batch, _kafka_partition, _kafka_offset FROM t"
    read = rows(settings, "bronze_events", sql) + rows(settings, "quarantine_events", sql)
    offsets = defaultdict(list)
    for batch, partition, offset in read:
        offsets[batch, partition].append(offset)
    per_batch = [(batch, partition, min(found), max(found)) for (batch, partition), found in offsets.items()]
    for partition in {p for _, p, _, _ in per_batch}:
        ranges = sorted((low, high) for _, p, low, high in per_batch if p == partition)
        assert ranges[0][0] == 0
        assert all(high + 1 == low for (_, high), (low, _) in pairwise(ranges))
    assert len(report.batches) == len({b for b, _, _, _ in per_batch}) >= 4
    assert all(n <= 60 for n in Counter(batch for batch, *_ in read).values())


def test_names_that_are_no_games_are_counted_and_kept_in_bronze(settings, make_pipeline):
    hostile = ("../../etc", "Rummy", "unified", "a" * 64, "\N{VIDEO GAME}", "with space")
    sent = produce(settings, Simulation(games=("rummy", *hostile), records_per_game_and_version=10))
    report = refresh(make_pipeline(settings))

    assert report.success
    assert dict(report.unrouted) == {"invalid": 10 * 2 * len(hostile)}
    assert count(settings, "bronze_events") == sent.decodable
    games = [n for n in Lakehouse.of(settings).names() if n.startswith(("silver_", "gold_"))]
    assert games == ["gold_rummy_player_agg", "gold_unified_player_agg", "silver_rummy_events"]
    books = reconcile(make_pipeline(settings))
    assert books.passed
    assert (books.bronze, books.silver, books.unrouted) == (sent.decodable, 20, sent.decodable - 20)


def test_with_an_allow_list_only_its_games_become_tables(make_settings, make_pipeline):
    settings = make_settings(games=("rummy",))
    sent = produce(settings, Simulation(games=("rummy", "uno"), records_per_game_and_version=10))
    report = refresh(make_pipeline(settings))

    assert dict(report.unrouted) == {"not_allowed": 20}
    assert count(settings, "bronze_events") == sent.decodable
    assert coordinates(settings, "silver_uno_events") == []
    assert count(settings, "silver_rummy_events") == 20


@pytest.mark.scenario
def test_past_the_limit_of_games_only_names_with_enough_rows_are_let_in(make_settings, make_pipeline):
    settings = make_settings(max_games=2, new_game_min_rows=100)
    produce(settings, Simulation(games=("rummy", "uno"), records_per_game_and_version=20))
    refresh(make_pipeline(settings))
    produce(settings, Simulation(games=("fake_1", "fake_2", "uno"), records_per_game_and_version=5, seed=1))
    produce(settings, Simulation(games=("chess",), records_per_game_and_version=60, seed=2))

    report = refresh(make_pipeline(settings))

    assert sorted(t.game for t in report.of("silver")) == ["chess", "uno"]
    assert dict(report.unrouted) == {"over_limit": 20}
    assert reconcile(make_pipeline(settings)).passed


@pytest.mark.scenario
def test_many_games_with_one_that_has_nearly_all_rows(settings, make_pipeline):
    sent = produce_bulk(settings, BulkSimulation(records=60_000, games=300, hot_share=0.9), partitions=4)
    report = refresh(make_pipeline(settings))

    assert report.success
    assert len(report.of("silver")) == 300
    assert_books_balance(settings, sent)


@pytest.fixture(scope="module")
def world(stack, spark, tmp_path_factory):
    """Settings and manifest of one run that the tests below look at, in their order: the last two go on with it."""
    settings = own_settings(stack, tmp_path_factory.mktemp("world"))
    wave = Simulation(games=("rummy", "chess"), versions=(1, 3), interleaving=(3, 1, 1, 3), poison_share=0.1)
    sent = produce(settings, wave)
    refresh(Pipeline(settings, lambda: spark))
    return settings, sent


def test_each_record_is_decoded_by_its_own_schema_version(world):
    settings, sent = world
    found = rows(settings, "bronze_events", "SELECT _schema_id, count(*), count(col_custom_2) FROM t GROUP BY 1")
    by_id = {schema_id: (records, with_last) for schema_id, records, with_last in found}
    first, third = by_id[sent.schema_ids[1]], by_id[sent.schema_ids[3]]
    assert first == (200, 0), "a record of version 1 has no column of version 3"
    assert third[0] == 200
    assert third[1] > 0


def test_raw_value_key_headers_and_coordinates_of_each_record_are_kept(world):
    settings, sent = world
    wanted = "game_name, gamer_id, _kafka_key, _kafka_headers, _raw_value, _schema_id"
    found = rows(settings, "bronze_events", f"SELECT {wanted} FROM t")
    assert len(found) == sent.decodable
    for game, gamer, key, headers, raw, schema_id in found:
        assert key.decode() == gamer
        assert [(h["key"], h["value"]) for h in headers] == [("game", game.encode())]
        assert raw[:5] == b"\0" + schema_id.to_bytes(4, "big")


@pytest.mark.scenario
def test_spark_reads_every_table_with_plain_delta(world, spark):
    settings, sent = world
    read = spark.read.format("delta")
    for table in Lakehouse.of(settings).names():
        assert read.load(f"{settings.lakehouse}/{table}").columns == columns(settings, table)
    silver = read.load(f"{settings.lakehouse}/silver_rummy_events")
    again = silver.groupBy("gamer_id").count().collect()
    assert sum(r["count"] for r in again) == sum(sent.records["rummy"].values())
    held = read.load(f"{settings.lakehouse}/gold_rummy_player_agg").collect()
    assert {r["gamer_id"]: r["count"] for r in again} == {r["gamer_id"]: r["session_count"] for r in held}


def test_a_second_run_without_new_data_writes_no_row_and_no_commit(world, make_pipeline):
    settings, _ = world
    before = versions(settings)
    report = refresh(make_pipeline(settings))
    assert versions(settings) == before
    assert report.tables == []
    assert report.batches == []


def test_a_reader_during_a_refresh_sees_the_old_aggregate_or_the_new_one(world, make_pipeline):
    settings, _ = world
    sums, stop = set(), threading.Event()

    def look():
        sums.add(rows(settings, "gold_rummy_player_agg", "SELECT sum(session_count) FROM t")[0][0])

    def poll():
        while not stop.wait(0.05):
            look()

    look()
    reader = threading.Thread(target=poll)
    reader.start()
    produce(settings, Simulation(games=("rummy",), seed=1))
    refresh(make_pipeline(settings))
    stop.set()
    reader.join()
    look()
    assert sums == {200, 400}
    assert DeltaTable(f"{settings.lakehouse}/gold_rummy_player_agg").version() == 1


def test_the_unified_table_follows_a_gold_table_that_was_recomputed(world, make_pipeline):
    settings, _ = world
    gold_table = DeltaTable(f"{settings.lakehouse}/gold_rummy_player_agg")
    gold_table.delete("session_count > 0")
    report = RunReport()
    refresh_gold(make_pipeline(settings), report, frozenset({"rummy"}), full=True)
    refresh_unified(make_pipeline(settings), report)
    columns = "gamer_id, session_count, min_timestamp, max_timestamp"
    held = rows(settings, "gold_unified_player_agg", f"SELECT {columns} FROM t WHERE game_name = 'rummy'")
    assert {r[0]: r[1:] for r in held} == gold(settings, "rummy")
    assert held
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before
