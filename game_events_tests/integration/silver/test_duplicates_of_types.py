"""Rows that were sent twice, where message types have tables of their own: all tables of a game are compared with."""

from collections import Counter

import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh as refresh_all
from game_events.plugins.governance.run import erase
from game_events_tests.integration.silver.test_duplicates import (
    BEGIN,
    ENTRIES,
    GAMES,
    RULES,
    Sent,
    as_table,
    every_step,
    in_spite_of_rules,
    kept,
    refresh,
    take_step,
)
from game_events_tests.support.tables import put, rows
from game_events_tests.support.worlds.quality import Event, rule, send_events
from game_events_tests.support.worlds.waves import power_cut_at

TABLES = {None: "", "studio.Start": ":start", "studio.Fail": ":fail"}
#: The second one by names without their first parts.
CHOSEN = {
    "one for all": ENTRIES["one for all"],
    "by type": [e | {"types": [e["types"][0].removeprefix("studio.")], "window_h": 20} for e in ENTRIES["by type"]],
}


@pytest.fixture
def make(make_settings, make_pipeline):
    """Pipelines over one folder, with a table for each type."""
    return lambda **options: make_pipeline(make_settings(silver_per="entity_and_type", **options))


def assert_whole(pipeline, sent, entries, judge=lambda _: True, note=""):
    """Silver has the rows that plain Python keeps, each in the table of its type, and the books balance."""
    silver, left_out = kept(sent.events, entries, judge)
    types = {event["_kafka_offset"]: event["_message_type"] for event in sent.events}
    wanted = {(f"{game}{TABLES[types[offset]]}", offset) for game, offsets in silver.items() for offset in offsets}
    tables = {f"{game}{mark}": pipeline.lakehouse.silver(f"{game}{mark}") for game in GAMES for mark in TABLES.values()}
    found = Counter((name, o) for name, table in tables.items() if table.exists() for (o,) in rows(table, "_kafka_offset"))
    assert found == Counter(wanted), note
    books = reconcile(pipeline)
    assert books.passed, (books.summary(), note)
    assert books.duplicates == sum(left_out.values())
    return left_out


def full_entries(entries):
    """With the types' full names, as the plain reckoning has them."""
    return [e | ({"types": [f"studio.{name}" for name in e["types"]]} if "types" in e else {}) for e in entries]


@pytest.mark.parametrize(("chosen", "first"), [("one for all", False), ("by type", True)], ids=["later", "first run"])
def test_after_a_crash_between_the_commits_of_a_games_tables_the_first_of_each_event_is_there(make, chosen, first):
    """Tables of types that are ahead are history, and their rows are not new again: none keeps itself, or another one, out."""
    entries = CHOSEN[chosen]
    sent = Sent(f"{chosen} {first}")
    pipeline = make(deduplicate=entries)
    if not first:
        sent.send(pipeline, 40)
        refresh(pipeline)
        assert_whole(pipeline, sent, full_entries(entries))
    sent.send(pipeline, 40)
    with power_cut_at("silver_type_committed:3"):
        refresh(make(deduplicate=entries))
    sent.send(pipeline, 30)
    refresh(make(deduplicate=entries))
    assert assert_whole(make(deduplicate=entries), sent, full_entries(entries)), "nothing was sent twice"
    refresh(make(deduplicate=entries), full=True)
    assert_whole(make(deduplicate=entries), sent, full_entries(entries))


def test_a_row_that_other_rules_kept_out_of_a_table_that_is_ahead_keeps_no_later_one_out(make):
    """What a table that is ahead has was decided under the rules of then: a row that is in no table is not the first one."""
    options = {"deduplicate": [{"key": ["event_id"], "window_h": 2}], "silver_types": ("studio.Start",)}
    pipeline = make(**options)
    kinds = [("a", "studio.Start"), ("a", "studio.Fail"), ("b", "studio.Start"), ("b", "studio.Fail")]
    place = {"game_name": "uno", "event_timestamp": BEGIN, "_kafka_topic": "events", "_kafka_topic_id": "x", "_batch": 1}
    events = [
        place | {"event_id": event, "_message_type": kind, "_kafka_partition": 0, "_kafka_offset": offset}
        for offset, (event, kind) in enumerate(kinds)
    ]
    put(pipeline.bronze, as_table(events), {Txn.BATCH: 1})
    with power_cut_at("silver_type_committed:1"):
        refresh(make(rules=(rule("no_a", "event_id <> 'a'", "drop", types=["Start"]),), **options))
    refresh(make(**options))
    found = {name: [o for (o,) in rows(pipeline.lakehouse.silver(name), "_kafka_offset")] for name in ("uno:start", "uno")}
    assert found == {"uno:start": [2], "uno": [1]}
    books = reconcile(make(**options))
    assert (books.passed, books.silver, books.dropped, books.duplicates) == (True, 2, 1, 1), books.summary()


def test_a_person_is_erased_with_rows_that_were_sent_twice_from_every_table_and_the_books_balance(make_settings, make_pipeline):
    options = {"silver_per": "entity_and_type", "deduplicate": [{"key": ["note"], "window_h": 1}], "erasure_key": "k" * 64}
    settings = make_settings(**options)
    for sent in (["a", "a", "b"], ["b", "c", None, None]):
        send_events(settings, [Event("uno", note=note, gamer="bob" if note == "b" else "ann") for note in sent])
        report = refresh_all(make_pipeline(settings))
        assert report.success, report.errors
    erase(make_pipeline(settings), RunReport(), frozenset({"bob"}))
    assert refresh_all(make_pipeline(settings)).success
    books = reconcile(make_pipeline(settings))
    assert (books.passed, books.bronze, books.silver, books.dropped, books.duplicates) == (True, 5, 4, 0, 1), books.summary()
    refresh(make_pipeline(settings), full=True)
    books = reconcile(make_pipeline(settings))
    assert (books.passed, books.bronze, books.silver, books.dropped, books.duplicates) == (True, 5, 4, 0, 1), books.summary()


@pytest.mark.scenario
@pytest.mark.parametrize(("chosen", "rules"), [("one for all", RULES), ("by type", ())])
def test_crashes_and_refreshes_change_nothing(make, chosen, rules):
    sent, taken = Sent(11), []
    judge = in_spite_of_rules if rules else lambda _: True
    of_types = [f"silver_type_committed:{number}" for number in (1, 2, 3, 4)]
    games = ["game_committed:1", "game_committed:3"]
    steps = every_step(
        ["silver_staged", *of_types, *games, "silver_committed"],
        ["silver_replanned", of_types[0], "silver_type_committed:6", *games, "silver_committed"],
    )

    def with_rules(**options):
        return make(deduplicate=CHOSEN[chosen], rules=rules, **options)

    for step, point in steps:
        taken.append(f"{step} {point}".strip())
        take_step(step, point, sent, with_rules)
        note = f"after {', '.join(taken)}"
        left_out = assert_whole(with_rules(), sent, full_entries(CHOSEN[chosen]), judge, note)
    assert left_out
