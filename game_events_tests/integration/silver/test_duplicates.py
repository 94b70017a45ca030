"""Rows that were sent twice: whatever the runs, crashes and batches, silver has those that plain Python keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest

from game_events.errors import ConfigurationError, ExtensionError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, TIME
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.orchestration.events import table_metadata
from game_events.pipeline import quality
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.refresh import refresh as refresh_all
from game_events.pipeline.silver import duplicates, duplicates_in_spark, stage
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.plugins.governance.run import erase
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.quality import SCHEMA, Event, assert_sound, encoded, rule, send_events
from game_events_tests.support.worlds.quality import in_silver as offsets_in_silver
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import at_point, power_cut_at

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
        put(pipeline.bronze, as_table(added), {Txn.BATCH: self.batches})


def _order(row):
    return row["_batch"], row["_kafka_topic_id"], row["_kafka_partition"], row["_kafka_offset"]


def as_table(events):
    """Rows of bronze."""
    columns = [("game_name", pa.string()), ("event_id", pa.string()), ("level", pa.int64()), ("event_timestamp", TIME)]
    fields = [*pa.schema(columns), *OWN_COLUMNS]
    return pa.table({f.name: pa.array([e.get(f.name) for e in events], f.type) for f in fields})


def kept(events, entries, judge=lambda _: True):
    """What silver has, game -> offsets, and game -> number of duplicates, as the setting's description says."""
    silver, left_out, before = {}, {}, []
    for event in events:
        game = event["game_name"]
        if game not in GAMES or not judge(event):
            continue
        kind = event["_message_type"]
        mine = [
            n for n, entry in enumerate(entries) if game in entry.get("games", GAMES) and kind in entry.get("types", [kind])
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
    return {game: sorted(offsets) for game, offsets in offsets_in_silver(pipeline.settings).items() if offsets}


def refresh(pipeline, **options):
    report = RunReport()
    refresh_silver(pipeline, report, **options)
    assert report.success, report.errors
    return report


def assert_kept(pipeline, events, entries, judge=lambda _: True):
    silver, left_out = kept(events, entries, judge)
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


WAYS = {
    "this process": ["by type"],
    "much history": ["by game"],
    "Spark": ["one for all"],
    "too many": ["by game"],
    "many rows": ["two columns, arrival", "by type"],
}


@pytest.mark.parametrize(("how", "chosen"), [(how, name) for how, names in WAYS.items() for name in names])
def test_whatever_way_rows_come_to_silver_it_has_the_first_of_each_event(
    make_settings, make_pipeline, monkeypatch, how, chosen
):
    entries = ENTRIES[chosen]
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
    for _ in range(2):
        sent.send(pipeline, 40)
        report = refresh(pipeline)
        for game, left in report.duplicates.items():
            reported[game] = reported.get(game, 0) + left
        left_out = assert_kept(pipeline, sent.events, entries)
    assert reported == left_out
    assert left_out, "nothing was sent twice: this test shows nothing"
    refresh(pipeline, full=True)
    assert_kept(pipeline, sent.events, entries)


#: What happens to silver once in a test, besides crashes.
STEPS = ("run", "one row", "rival", "rival of a full refresh", "full refresh", "of one game", "one game alone")


def every_step(crashes, crashes_of_full_refresh):
    """Each step, and a crash at each of the points, once: (step, point), in an order that is the same each time."""
    steps = [(step, "") for step in STEPS]
    steps += [("crash", point) for point in crashes]
    steps += [("crash of a full refresh", point) for point in crashes_of_full_refresh]
    Random(1).shuffle(steps)  # noqa: S311 - a test's choices
    return steps


def take_step(step, point, sent, make):
    """Rows arrive and something happens to silver; a crash or a rival that does not come is a failure."""
    sent.send(make(), 1 if step == "one row" else 40)
    if step.startswith("crash"):
        with power_cut_at(point):
            refresh(make(), full=step == "crash of a full refresh")
    elif step.startswith("rival"):
        is_full = step == "rival of a full refresh"
        meeting = "silver_replanned" if is_full else "silver_staged"
        with pytest.MonkeyPatch.context() as patch:
            happened = at_point(patch, meeting, lambda: (sent.send(make(), 7), refresh(make())))
            refresh(make(), full=is_full)
        assert happened == [meeting]
    elif step == "of one game":
        refresh(make(), games=frozenset({sent.random.choice(GAMES)}), full=True)
    elif step == "one game alone":  # the others stay behind
        refresh(make(games=(sent.random.choice(GAMES),)))
    refresh(make(), full=step == "full refresh")


#: Rules that keep rows out, and what they say of an event.
RULES = (rule("low", "level IS NULL OR level < 2", "drop"), rule("id", "event_id <> 'd'", "quarantine"))


def in_spite_of_rules(event):
    return (event["level"] is None or event["level"] < 2) and event["event_id"] not in ("d", None)


@pytest.mark.scenario
@pytest.mark.parametrize(("chosen", "rules"), [("by game", ()), ("one for all", RULES)])
def test_crashes_rivals_and_refreshes_change_nothing(make_settings, make_pipeline, chosen, rules):
    """Rows that rules keep out take no part: a later row with the same key is the first one."""
    sent, taken, entries = Sent(7), [], ENTRIES[chosen]
    judge = in_spite_of_rules if rules else lambda _: True
    committed = [f"game_committed:{number}" for number in (1, 2, 3)]
    steps = every_step(
        ["silver_staged", *committed, "silver_committed"], ["silver_replanned", *committed[:2], "silver_committed"]
    )

    def make(**options):
        return make_pipeline(make_settings(deduplicate=entries, rules=rules, **options))

    for step, point in steps:
        taken.append(f"{step} {point}".strip())
        take_step(step, point, sent, make)
        silver, left_out = kept(sent.events, entries, judge)
        assert in_silver(make()) == silver, taken
        books = reconcile(make())
        assert books.passed, (books.summary(), taken)
        assert books.duplicates == sum(left_out.values())
    assert left_out


def test_a_setting_that_is_taken_away_or_changed_counts_for_later_rows_until_a_full_refresh(make_settings, make_pipeline):
    sent = Sent(3)
    with_it, without = (make_pipeline(make_settings(deduplicate=entries)) for entries in ([EVENT_ID], []))
    for pipeline in (with_it, without):
        sent.send(pipeline, 40)
        refresh(pipeline)
    first, second = ([e for e in sent.events if e["_batch"] == batch] for batch in (1, 2))
    begun, added = kept(first, [EVENT_ID])[0], kept(second, [])[0]
    assert in_silver(without) == {game: sorted([*begun[game], *added[game]]) for game in GAMES}
    refresh(without, full=True)
    assert_kept(without, sent.events, [])
    refresh(with_it, full=True)
    assert_kept(with_it, sent.events, [EVENT_ID])


def test_transformations_may_add_columns_but_not_change_what_is_compared_or_the_number_of_rows(
    make_settings, make_pipeline, tmp_path
):
    head = "from pyspark.sql import functions as F\nfrom game_events.extending import silver_transformation\n"
    made = {
        "adds": "@silver_transformation\ndef hour(rows):\n    return rows.withColumn('hour', F.hour('event_timestamp'))\n",
        "changes": "@silver_transformation\ndef upper(rows):\n    return rows.withColumn('event_id', F.upper('event_id'))\n",
        "drops": "@silver_transformation(rows='any')\ndef some(rows):\n    return rows.where('level = 1')\n",
    }
    sent = Sent(5)
    for name, text in made.items():
        (tmp_path / f"{name}.py").write_text(head + text)
    for number in range(2):
        pipeline = make_pipeline(make_settings(deduplicate=[EVENT_ID], extensions=str(tmp_path / "adds.py")))
        sent.send(pipeline, 30)
        refresh(pipeline)
        assert assert_kept(pipeline, sent.events, [EVENT_ID]), number
    sent.send(pipeline, 30)
    for name, message in (("changes", "by which GAME_EVENTS_DEDUPLICATE compares rows"), ("drops", "has rows='any'")):
        pipeline = make_pipeline(make_settings(deduplicate=[EVENT_ID], extensions=str(tmp_path / f"{name}.py")))
        report = RunReport()
        try:
            refresh_silver(pipeline, report)
            why = " ".join(str(table.error) for table in report.errors)
        except (ConfigurationError, ExtensionError) as error:
            why = str(error)
        assert message in why, why


def test_events_that_a_producer_repeats_are_in_silver_and_gold_once_and_a_person_is_erased_with_them(
    make_settings, make_pipeline
):
    settings = make_settings(deduplicate=[{"key": ["note"], "window_h": 1}], erasure_key="k" * 64)
    told = RunReport()
    for sent in (["a", "a", "b"], ["b", "c", None, None]):
        send_events(settings, [Event("uno", note=note, gamer="bob" if note == "b" else "ann") for note in sent])
        report = refresh_all(make_pipeline(settings))
        assert report.success, report.errors
        told.add(report)
    assert told.to_dict()["duplicates"] == {"uno": 2}
    assert sum(table.duplicates for table in told.of("silver")) == 2
    assert table_metadata(told.of("silver")[0], told)["rows_duplicate"] == 2
    assert offsets_in_silver(settings) == {"uno": [0, 2, 4, 5, 6]}
    assert_sound(make_pipeline(settings))

    # The second row of bob was left out, so it is erased with the first one.
    erase(make_pipeline(settings), RunReport(), frozenset({"bob"}))
    assert refresh_all(make_pipeline(settings)).success
    books = reconcile(make_pipeline(settings))
    assert (books.passed, books.bronze, books.silver, books.duplicates) == (True, 5, 4, 1)
    refresh(make_pipeline(settings), full=True)
    assert offsets_in_silver(settings) == {"uno": [0, 4, 5, 6]}
    assert_sound(make_pipeline(settings))


def test_a_copy_that_a_replay_adds_comes_after_the_rows_before_it_and_a_redecode_changes_nothing(
    make_settings, make_pipeline, stack
):
    """Of rows that were in quarantine the batch of the replay counts, not their offset, whatever is made anew later."""
    entries = [{"key": ["note"], "window_h": 1}]
    known = register(make_settings(), SCHEMA)
    hidden = register(make_settings(), f"{SCHEMA} message Later {{ string a = 1; }}")
    events = []

    def send(batch, *notes):
        """Events that become rows by that batch: those of the hidden schema by the replay, the third batch."""
        ids = [hidden if note.endswith("?") else known for note in notes]
        payloads = [encoded(Event("uno", note=note.removesuffix("?"))) for note in notes]
        send_values(settings, [b"\0" + i.to_bytes(4, "big") + b"\0" + p for i, p in zip(ids, payloads, strict=True)])
        for note in notes:
            event = {"game_name": "uno", "note": note.removesuffix("?"), "event_timestamp": BEGIN, "_message_type": "Event"}
            event |= {"_kafka_topic_id": "x", "_kafka_partition": 0, "_kafka_offset": len(events), "_kafka_timestamp": BEGIN}
            events.append(event | {"_batch": 3 if note.endswith("?") else batch})

    def assert_as_sent(batches):
        there = sorted((event for event in events if event["_batch"] <= batches), key=_order)
        wanted = sorted((event["_kafka_offset"], event["_batch"]) for event in there)
        assert rows(settings, BRONZE, "SELECT _kafka_offset, _batch FROM t ORDER BY 1") == wanted
        return assert_kept(make_pipeline(settings), there, entries)

    with registry_proxy(stack.schema_registry_url) as proxy:
        settings = make_settings(schema_registry_url=proxy.url, deduplicate=entries)
        proxy.hide(hidden)
        for batch, notes in enumerate((["a", "b?", "c?"], ["b", "a?", "d?", "d?"]), 1):
            send(batch, *notes)
            assert refresh_all(make_pipeline(settings)).success
        assert assert_as_sent(2) == {}
        assert count(settings, QUARANTINE) == 5
        proxy.show_all()
        assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 5
        refresh(make_pipeline(settings))
        assert assert_as_sent(3) == {"uno": 3}
        send(4, "c", "d", "e")
        assert refresh_all(make_pipeline(settings)).success
        assert assert_as_sent(4) == {"uno": 5}

        done = redecode(make_pipeline(settings), RunReport())
        assert (done.rows, dict(done.kept)) == (10, {})
        refresh(make_pipeline(settings))
        assert assert_as_sent(4) == {"uno": 5}
        refresh(make_pipeline(settings), full=True)
        assert assert_as_sent(4) == {"uno": 5}
        send(5, "e", "f")
        assert refresh_all(make_pipeline(settings)).success
        assert assert_as_sent(5) == {"uno": 6}
    assert_sound(make_pipeline(settings))
