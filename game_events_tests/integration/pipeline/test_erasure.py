"""A gamer who is forgotten is in no byte of any table, does not come back, and nobody else notices."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.versions import readable_versions
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.event_log import recorded
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.erased_people import add_people, finish_people, hashes_of
from game_events.plugins.governance.run import erase
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.erasure import places_of, tables_of
from game_events_tests.support.worlds.own_module import HEAD
from game_events_tests.support.worlds.quality import (
    SCHEMA,
    Event,
    assert_sound,
    encoded,
    in_silver,
    rejected,
    rule,
    send_events,
)
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import at_point, versions

GONE, STAYS = "gamer-to-forget", "gamer-who-stays"
KEY = "a key of the tests, long enough"
OWN = """
@gold_aggregate("total")
def total():
    return {"events": count(), "amount": sum_of("amount")}

@gold_aggregate("sums", keys=["gamer_id"])
def sums():
    return {"events": count(), "amount": sum_of("amount")}
"""
RULES = [
    rule("not_too_much", "coalesce(amount, 0) < 1000", "quarantine"),
    rule("not_too_little", "coalesce(amount, 0) >= 0", "drop"),
]


@pytest.fixture
def settings(make_settings, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(HEAD + OWN)
    return make_settings(
        erasure_key=KEY, rules=RULES, extensions=(str(own),), allow_bronze_full_refresh=True, max_records_per_batch=20
    )


def wave(settings, games=("chess", "go"), gone=GONE):
    """Events of two gamers: good ones, some that a rule rejects, and some that one drops; the second plays one game more."""
    events = [
        Event(game, amount, gamer=gamer)
        for gamer, played in ((gone, games), (STAYS, (*games, "uno")))
        for game in played
        for amount in (1, 20, 3000, -4)
    ]
    send_events(settings, events)
    return events


def kept(events):
    return [e for e in events if e.gamer == STAYS]


def assert_whole(settings, make_pipeline, events, checks=CHECKS):
    """What the topic holds of the gamer who stays is in its place, and every check that blocks passes."""
    pipeline = make_pipeline(settings)
    assert_sound(pipeline)
    left = kept(events)
    assert count(settings, "bronze_events") == len(left)
    assert len(rejected(settings)) == sum(e.amount >= 1000 for e in left)
    silver = in_silver(settings)
    for game in {e.game for e in left}:
        good = [e.amount for e in left if e.game == game and 0 <= e.amount < 1000]
        assert len(silver[game]) == len(good)
        assert rows(settings, f"gold_{game}_total", "SELECT events, amount FROM t") == [(len(good), sum(good))]
        assert rows(settings, f"gold_{game}_sums", "SELECT gamer_id, events, amount FROM t") == [(STAYS, len(good), sum(good))]
    failed = [(c.name, found.summary) for c in checks if not (found := c.run(pipeline)).passed and c.blocking]
    assert failed == []


def assert_nothing_to_do(settings, make_pipeline):
    before = versions(settings)
    report = refresh(make_pipeline(settings))
    assert (report.tables, report.errors) == ([], [])
    assert versions(settings) == before


def forgotten(pipeline, gamer=GONE, *, vacuum=False):
    """As the command does it."""
    report = RunReport()
    with recorded(pipeline, report, "forget"):
        wanted = erase(pipeline, report, frozenset({gamer}))
        assert report.parts["erasure"].finished, report.errors
        if vacuum:
            remove_old_files(pipeline, report.parts["erasure"], wanted)
    return report.parts["erasure"]


@pytest.mark.scenario
def test_a_forgotten_gamer_is_in_no_byte_and_does_not_come_back(settings, make_pipeline):
    events = wave(settings)
    damaged = b"\0\0\0\0\1\0" + encoded(Event("chess", 5, gamer=GONE)) + b"\x7f"
    send_values(settings, [damaged, b"nobody knows whose this is"])
    refresh(make_pipeline(settings))
    events += wave(settings, ("chess",))
    refresh(make_pipeline(settings))
    everywhere = {"bronze_events", "quarantine_events", "gold_unified_player_agg"}
    everywhere |= {f"{layer}_{g}_{what}" for g in ("chess", "go") for layer, what in (("silver", "events"), ("gold", "sums"))}
    everywhere |= {f"gold_{g}_player_agg" for g in ("chess", "go")}
    assert tables_of(settings, GONE) == everywhere
    assert not [p for p in places_of(settings, GONE) if "_delta_log" in p], "a log outlives the rows"

    report = RunReport()
    before = versions(settings)
    erase(make_pipeline(settings), report, frozenset({GONE}), dry_run=True)
    assert versions(settings) == before
    would_go = {t: n for t, n in report.parts["erasure"].rows.items() if not t.startswith("gold_")}
    assert would_go["bronze_events"] == len(events) - len(kept(events))

    account = forgotten(make_pipeline(settings))
    assert {t: n for t, n in account.rows.items() if not t.startswith("gold_")} == would_go
    assert account.unsearchable == 1, "the other damaged record told whose it was"
    assert_whole(settings, make_pipeline, events)
    # Games they never played are left alone, and no row is read a second time.
    assert versions(settings)["silver_uno_events"] == before["silver_uno_events"]
    assert_nothing_to_do(settings, make_pipeline)
    assert places_of(settings, GONE), "older versions have their files"

    account = forgotten(make_pipeline(settings), vacuum=True)
    assert account.removed_files.total() > 0
    assert account.kept_files == {}
    assert places_of(settings, GONE) == []
    assert places_of(settings, KEY) == []
    logged = read_events(make_pipeline(settings).lakehouse, kind="erased").to_pylist()
    assert {r["status"] for r in logged} == {"finished"}
    assert all(json.loads(r["detail"])["hashes"] == account.hashes for r in logged)

    # What still comes of them, in old games and new ones, is counted and in no table.
    more = wave(settings, ("chess", "new_game"))
    send_values(settings, [b"nobody knows this either, but for its key"], key=GONE.encode())
    report = refresh(make_pipeline(settings))
    assert report.suppressed == len(more) - len(kept(more)) + 1
    events += more
    assert_whole(settings, make_pipeline, events, checks=())
    everything = selection_of(make_pipeline(settings), full_refresh=["bronze", "all"])
    report = refresh(make_pipeline(settings), selection=everything)
    assert report.success, report.errors
    # The damaged record, too, which has no key: the list has its coordinates.
    assert report.suppressed == len(events) - len(kept(events)) + 2
    assert places_now(settings, GONE) == []
    assert_whole(settings, make_pipeline, events)
    redecode(make_pipeline(settings), RunReport())
    assert_whole(settings, make_pipeline, events)
    assert refresh(make_pipeline(settings)).tables == []


@pytest.fixture
def few_jobs(make_settings):
    """No aggregates of one's own, and as few files as there can be: these tests erase again and again."""
    return make_settings(erasure_key=KEY, rules=RULES)


def test_versions_from_before_an_erasure_are_not_kept_for_days_though_others_are(make_settings, make_pipeline):
    settings = make_settings(erasure_key=KEY, rules=RULES, every_version_h=1e-6)
    wave(settings, games=("chess",))
    refresh(make_pipeline(settings))
    wave(settings, games=("chess",))
    refresh(make_pipeline(settings))
    for _ in range(3):
        maintain(make_pipeline(settings), RunReport())
    bronze = make_pipeline(settings).bronze
    first = DeltaTable(bronze.uri, readable_versions(bronze)[0])
    assert first.version() < 2, "nobody was erased yet: the first versions can be read"
    assert all(Path(bronze.uri, file).exists() for file in paths(first))
    assert tables_of(settings, GONE) >= {"bronze_events", "silver_chess_events", "gold_chess_player_agg"}
    forgotten(make_pipeline(settings))
    for _ in range(3):
        report = RunReport()
        maintain(make_pipeline(settings), report)
        assert report.success, report.maintenance
    assert places_of(settings, GONE) == [], "without --vacuum"
    assert places_of(settings, STAYS)
    found = reconcile(make_pipeline(settings))
    assert found.passed, found.summary()


@pytest.mark.scenario
def test_runs_beside_an_erasure_lose_nothing_and_bring_nobody_back(few_jobs, make_pipeline, monkeypatch):
    """Whichever of the two is between staging and commit."""
    settings = few_jobs
    events = wave(settings, gone="gamer-of-before")
    refresh(make_pipeline(settings))
    for number, point in enumerate(("bronze_staged", "silver_staged", "rejections_decided", "gold_staged")):
        gamer = f"gamer-{number}"
        events += wave(settings, games=("chess",), gone=gamer)
        with monkeypatch.context() as patch:
            happened = at_point(patch, point, lambda gamer=gamer: forgotten(make_pipeline(settings), gamer))
            report = refresh(make_pipeline(settings))
        assert happened == [point]
        assert report.success, (point, report.errors)
        assert places_now(settings, gamer) == [], point
        found = reconcile(make_pipeline(settings))
        assert found.passed, (point, found.summary(), found.metadata())
    # The other way round: a run is at work while files without the gamer's rows wait for their commit.
    events += wave(settings)
    with monkeypatch.context() as patch:
        happened = at_point(patch, "erase_staged", lambda: refresh(make_pipeline(settings)))
        forgotten(make_pipeline(settings), "gamer-of-before")
    assert happened
    forgotten(make_pipeline(settings))
    assert_sound(make_pipeline(settings))
    assert count(settings, "bronze_events") == len(kept(events))
    assert_nothing_to_do(settings, make_pipeline)


def places_now(settings, text):
    """Tables whose newest version holds a text in a column of its own."""
    lakehouse = Lakehouse(settings.lakehouse)
    return [
        name
        for name in lakehouse.names()
        if (handle := lakehouse.table(name).open()) is not None
        and text in str(read_arrow(lakehouse.table(name), handle).to_pylist())
    ]


def test_records_that_decode_only_later_are_kept_out_of_bronze_and_go_from_quarantine(few_jobs, make_pipeline, stack):
    settings = few_jobs
    with registry_proxy(stack.schema_registry_url) as proxy:
        hidden = settings.model_copy(update={"schema_registry_url": proxy.url})
        proxy.hide(register(settings, SCHEMA))
        events = wave(settings)
        load_bronze(make_pipeline(hidden), RunReport())
        assert count(settings, "quarantine_events") == len(events)
        add_people(make_pipeline(settings).lakehouse, KEY.encode(), hashes_of(KEY.encode(), frozenset({GONE})), "run")
    report = refresh(make_pipeline(settings))
    assert report.suppressed == len(events) - len(kept(events))
    assert_sound(make_pipeline(settings))
    assert count(settings, "bronze_events") == len(kept(events))
    assert places_now(settings, GONE) == []
    assert_nothing_to_do(settings, make_pipeline)
    # The same of rows that a redecode recognises: those that a rule has rejected go from quarantine, too.
    lakehouse = make_pipeline(settings).lakehouse
    finish_people(lakehouse, hashes_of(KEY.encode(), frozenset({GONE})))
    add_people(lakehouse, KEY.encode(), hashes_of(KEY.encode(), frozenset({STAYS})), "run")
    assert rejected(settings)
    report = RunReport()
    redecode(make_pipeline(settings), report)
    assert report.suppressed == len(kept(events))
    assert (count(settings, "bronze_events"), rejected(settings)) == (0, [])


def test_without_the_key_or_with_another_one_nothing_is_read_and_nobody_is_forgotten(make_settings, make_pipeline):
    keyless = make_settings()
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_ERASURE_KEY is not set"):
        erase(make_pipeline(keyless), RunReport(), frozenset({GONE}))
    send_events(keyless, [Event("chess")])
    add_people(make_pipeline(keyless).lakehouse, KEY.encode(), hashes_of(KEY.encode(), frozenset({GONE})), "run")
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_ERASURE_KEY is not set"):
        refresh(make_pipeline(keyless))
    other = make_settings(erasure_key=KEY[::-1])
    for work in (refresh, lambda p: erase(p, RunReport(), frozenset({GONE}))):
        with pytest.raises(ConfigurationError, match="another key") as refused:
            work(make_pipeline(other))
        assert KEY[::-1] not in str(refused.value)
    assert count(keyless, "bronze_events") == 0
