"""Rows that were sent twice: whatever the runs, crashes and batches, silver has those that plain Python keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.tables import paths
from game_events.pipeline import quality
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver import duplicates, duplicates_in_spark, stage
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.support.tables import put, rows
from game_events_tests.support.worlds.quality import rule
from game_events_tests.support.worlds.waves import power_cut_at

GAMES = ("uno", "go", "chess")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EVENT_ID = {"key": ["event_id"], "window_h": 2}


class Sent:
    """Events as bronze has them, in its order, batch by batch."""

    def __init__(self, seed):
        self.random, self.events, self.batches = Random(seed), [], 0  # noqa: S311 - a test's choices

    def event(self):
        random = self.random
        minutes = random.choice([None, *range(0, 600, 17)])
        return {
            "game_name": random.choice((*GAMES, "no/game", None)),
            "event_id": random.choice([None, *"abcd"]),
            "level": random.choice([None, 1, 2]),
            "event_timestamp": None if minutes is None else BEGIN + timedelta(minutes=minutes),
            "_kafka_timestamp": BEGIN + timedelta(minutes=len(self.events)),
            "_message_type": random.choice([None, "studio.Start", "studio.Fail"]),
        }

    def send(self, pipeline, count):
        """A batch of so many, in files whose rows are in any order."""
        self.batches += 1
        added = []
        for _ in range(count):
            place = {"_kafka_topic_id": self.random.choice("xy"), "_kafka_partition": self.random.randint(0, 1)}
            place |= {"_kafka_topic": "events", "_kafka_offset": len(self.events) + len(added), "_batch": self.batches}
            added.append(self.event() | place)
        self.events += sorted(added, key=_order)
        put(pipeline.bronze, _table(added), {Txn.BATCH: self.batches})


def _order(row):
    return row["_batch"], row["_kafka_topic_id"], row["_kafka_partition"], row["_kafka_offset"]


def _table(events):
    columns = {"game_name": pa.string(), "event_id": pa.string(), "level": pa.int64(), "event_timestamp": pa.timestamp("us", "UTC")}
    fields = [*(pa.field(n, t) for n, t in columns.items()), *OWN_COLUMNS]
    return pa.table({f.name: pa.array([e.get(f.name) for e in events], f.type) for f in fields})


def kept(events, entries, judge=lambda _: True):
    """What silver has, game -> offsets, and game -> number of duplicates, as the setting's description says."""
    silver, left_out, before = {}, {}, []
    for event in events:
        game = event["game_name"]
        if game not in GAMES or not judge(event):
            continue
        mine = [
            n
            for n, entry in enumerate(entries)
            if game in (entry.get("games") or GAMES) and event["_message_type"] in (entry.get("types") or [event["_message_type"]])
        ]
        is_twice = False
        if mine:
            entry = entries[mine[0]]
            key = [event[name] for name in entry["key"]]
            time = event["_kafka_timestamp" if entry.get("of") == "arrival" else "event_timestamp"]
            if time is not None and None not in key:
                window = timedelta(hours=entry["window_h"])
                same = (mine[0], game, key)
                is_twice = any(other == same and abs(at - time) <= window for other, at in before)
                before += [] if is_twice else [(same, time)]
        if is_twice:
            left_out[game] = left_out.get(game, 0) + 1
        else:
            silver.setdefault(game, []).append(event["_kafka_offset"])
    return {game: sorted(offsets) for game, offsets in silver.items()}, left_out


def in_silver(pipeline):
    tables = {game: pipeline.lakehouse.silver(game) for game in GAMES}
    return {game: [o for (o,) in rows(table, "_kafka_offset")] for game, table in tables.items() if table.exists()}


def refresh(pipeline, **options):
    report = RunReport()
    refresh_silver(pipeline, report, **options)
    assert report.success, report.errors
    return report


def assert_kept(pipeline, sent, entries, judge=lambda _: True):
    silver, left_out = kept(sent.events, entries, judge)
    assert in_silver(pipeline) == silver
    books = reconcile(pipeline)
    assert books.passed, books.summary()
    assert books.duplicates == sum(left_out.values())
    return left_out


ENTRIES = {
    "one for all": [EVENT_ID],
    "two columns, arrival": [{"key": ["event_id", "level"], "window_h": 0.5, "of": "arrival"}],
    "by game": [EVENT_ID | {"games": ["uno"]}, {"key": ["level"], "window_h": 4, "games": ["go"], "of": "arrival"}],
    "by type": [EVENT_ID | {"types": ["studio.Start"]}, {"key": ["level"], "window_h": 1, "types": ["studio.Fail"]}],
}


@pytest.mark.parametrize("how", ["this process", "much history", "Spark", "too many", "many rows"])
@pytest.mark.parametrize("entries", ENTRIES.values(), ids=ENTRIES)
def test_whatever_way_rows_come_to_silver_it_has_the_first_of_each_event(make_settings, make_pipeline, monkeypatch, entries, how):
    if how == "Spark":
        monkeypatch.setattr(stage.Staging, "_is_plain", False)
    if how == "too many":
        for module in (quality, stage):
            monkeypatch.setattr(module, "MOST_VIOLATIONS", 3)
    if how == "many rows":
        monkeypatch.setattr(duplicates, "MOST_NEW_ROWS", 0)
        monkeypatch.setattr(duplicates_in_spark, "MOST_SENT_HASHES", 0)
        monkeypatch.setattr(duplicates_in_spark, "ROWS_AT_ONCE", 7)
    if how == "much history":
        monkeypatch.setattr(duplicates, "FEW_ROWS", 0)
        monkeypatch.setattr(duplicates, "HISTORY_TASK_ROWS", 10)
    sent = Sent(how)
    pipeline = make_pipeline(make_settings(deduplicate=entries))
    reported = {}
    for _ in range(3):
        sent.send(pipeline, 40)
        report = refresh(pipeline)
        for game, count in report.duplicates.items():
            reported[game] = reported.get(game, 0) + count
        left_out = assert_kept(pipeline, sent, entries)
    assert reported == left_out
    assert left_out, "nothing was sent twice: this test shows nothing"
    refresh(pipeline, full=True)
    assert_kept(pipeline, sent, entries)
