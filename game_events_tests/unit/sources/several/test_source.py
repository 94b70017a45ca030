"""Several sources as one: one plan, one snapshot; one that fails is left out, and a cause that is not known is searched for."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.decoding.frame import RegistrySchema
from game_events.errors import ConfigurationError, TransientError
from game_events.sources.factory import class_of
from game_events.sources.several import source as several
from game_events.sources.several.reader import NamedReading, SeveralReadings
from game_events.sources.several.source import SeveralSources
from game_events.sources.source import KAFKA, MicroBatch, Partition, Reading, ReadNotes, SourceContext, SourceSnapshot
from game_events_tests.support.sources import ScriptedSource
from game_events_tests.support.waiting import until

SETTINGS = load_settings(
    kafka_topic="events", max_records_per_batch=100, sources={"eu": {}, "us": {"kafka_bootstrap_servers": "us:9092"}}
)
IDS = {"eu": "5cB9Bc9QRbCeqUM/tZO+tg", "us": "AAAAAAAAAAAAAAAAAAAAAQ"}


def at(name, number=0):
    return Partition("events", IDS[name], number, KAFKA, name)


class Scripted(ScriptedSource):
    """A topic with so many records, or an error."""

    one_by_one = True

    def __init__(self, context: SourceContext) -> None:
        self.name_ = context.name
        self.records: int | Exception = 10
        self.asked = 0

    def snapshot(self, *, take_in=True, full_refresh=False):  # noqa: ARG002
        self.asked += 1
        if isinstance(self.records, Exception):
            raise self.records
        return SourceSnapshot({at(self.name_): 0}, {at(self.name_): self.records})

    def batch_limit(self, reached):  # noqa: ARG002
        return 100


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def made(monkeypatch, clock):
    """Both sources, of which the test says what they answer."""
    monkeypatch.setattr(several, "class_of", lambda _: Scripted)
    return SeveralSources(SourceContext(SETTINGS, None), clock=lambda: clock[0])


def scripted(made, name) -> Any:
    return made._of[name]


def names(now):
    return sorted(partition.source for partition in now.latest)


def test_what_is_set_makes_several_sources_and_else_there_is_one():
    assert class_of(SETTINGS) is SeveralSources
    assert class_of(load_settings()) is not SeveralSources


def test_one_plan_shares_its_room_by_what_each_has(made):
    scripted(made, "eu").records = 900
    scripted(made, "us").records = 100
    now = made.snapshot()
    part = made.plan(now, {at("eu"): 0, at("us"): 0}, now.latest)
    assert {p.source: end for p, end in part.end.items()} == {"eu": 90, "us": 10}
    assert part.reached == {at("eu"): 0, at("us"): 0}
    assert sum(part.lag.values()) == 900
    assert made.plan(now, now.latest, now.latest) is None


def test_files_have_a_room_of_their_own_beside_topics(made):
    files = Partition("files", "00000000-0000-0000-0000-000000000001", 0, "files", "us")
    scripted(made, "us").kind = "files"
    scripted(made, "us").batch_limit = lambda _: 2 * 2**32
    now = SourceSnapshot({at("eu"): 0, files: 0}, {at("eu"): 300, files: 5 * 2**32}, units={"files": 2**32, KAFKA: 1})
    part = made.plan(now, {at("eu"): 0, files: 0}, now.latest)
    assert part.end == {at("eu"): 100, files: 2 * 2**32}
    assert part.records == 102
    assert part.lag == {at("eu"): 200, files: 3}


def test_a_source_that_does_not_answer_is_left_out_and_is_back_without_being_waited_for(made, clock):
    scripted(made, "us").records = TransientError("us is down")
    assert names(made.snapshot()) == ["eu"]
    assert made.failures == {"us": "us is down"}
    assert names(made.snapshot()) == ["eu"]
    assert scripted(made, "us").asked == 1, "it was asked again at once"

    answers = threading.Event()

    def slow(**_):
        assert answers.wait(60)
        return SourceSnapshot({at("us"): 0}, {at("us"): 3})

    quick = scripted(made, "us").snapshot
    scripted(made, "us").snapshot = slow
    clock[0] += several.FIRST_PAUSE_S
    assert names(made.snapshot()) == ["eu"], "it was waited for"
    answers.set()
    scripted(made, "us").snapshot = quick
    scripted(made, "us").records = 3
    until(made._failed["us"].asked.done, 30)
    assert names(made.snapshot()) == ["eu", "us"]
    assert made.failures == {}


def test_a_refused_login_is_a_failure_like_any_other_and_no_secret_is_told(monkeypatch, clock):
    monkeypatch.setattr(several, "class_of", lambda _: Scripted)
    settings = load_settings(sources={"eu": {}, "us": {"kafka_options": {"sasl.password": "the-password"}}})
    made = SeveralSources(SourceContext(settings, None), clock=lambda: clock[0])
    scripted(made, "us").records = ConfigurationError("refused with the-password")
    assert names(made.snapshot()) == ["eu"]
    assert made.failures == {"us": "refused with ***"}


def test_if_none_answers_the_error_is_one_that_a_retry_may_help(made):
    scripted(made, "eu").records = ConfigurationError("refused")
    scripted(made, "us").records = TransientError("down")
    with pytest.raises(TransientError, match="down"):
        made.snapshot()
    scripted(made, "us").records = 4
    assert names(made.snapshot()) == ["us"], "the others are asked again at once if none is left"


def test_after_a_failure_each_has_a_turn_alone_and_who_fails_alone_is_set_aside(made):
    made.snapshot()
    assert made.sets_aside(TransientError("a registry"))
    assert made.takes_turns
    assert names(made.snapshot()) == ["eu"]
    assert made.next_turn()
    assert names(made.snapshot()) == ["us"]
    assert made.sets_aside(TransientError("a registry"))
    assert not made.takes_turns
    assert names(made.snapshot()) == ["eu"]
    assert made.failures == {"us": "a registry"}
    assert not made.next_turn()


def test_a_failure_of_all_alone_is_none_of_a_source(made):
    made.snapshot()
    error = TransientError("the lakehouse")
    assert made.sets_aside(error)
    assert made.sets_aside(error)
    assert not made.sets_aside(error)


def test_a_source_that_stops_in_its_turn_ends_it(made):
    made.snapshot()
    made.sets_aside(TransientError("something"))
    scripted(made, "eu").records = TransientError("down")
    assert names(made.snapshot()) == ["us"]
    assert list(made.failures) == ["eu"]


def test_pauses_grow_while_it_goes_on_failing(made, clock):
    scripted(made, "us").records = TransientError("down")
    pauses = []
    for _ in range(7):
        made.snapshot()
        failure = made._failed["us"]
        pauses.append(failure.pause_s)
        clock[0] = failure.again_at
        made.snapshot()
        until(failure.asked.done, 30)
    assert pauses == sorted(pauses)
    assert pauses[:3] == [several.FIRST_PAUSE_S, 2 * several.FIRST_PAUSE_S, 4 * several.FIRST_PAUSE_S]
    assert pauses[-1] == several.LONGEST_PAUSE_S


def test_one_partition_in_two_sources_is_refused(made, monkeypatch):
    monkeypatch.setitem(IDS, "us", IDS["eu"])
    with pytest.raises(ConfigurationError, match=r"eu and us both read events\[0\]"):
        made.snapshot()


def test_a_full_refresh_needs_all(made):
    scripted(made, "us").records = TransientError("down")
    with pytest.raises(TransientError, match=r"source us: down\. A full refresh needs every source"):
        made.snapshot(full_refresh=True)


def test_progress_does_not_depend_on_a_sources_name():
    plain = Partition("events", IDS["eu"], 3)
    assert plain.app == at("eu", 3).app == Partition("events", IDS["eu"], 3, KAFKA, "other").app
    assert (str(at("eu", 3)), str(plain)) == ("eu/events[3]", "events[3]")
    assert set(plain.id_txns).isdisjoint(at("eu").id_txns)
    assert set(at("us").id_txns).isdisjoint(at("eu").id_txns)


def test_only_a_source_that_is_read_now_wants_a_topic_that_is_gone(made):
    scripted(made, "eu").wants = lambda topic: topic == "events"
    made.snapshot()
    assert made.wants("eu/events")
    assert not made.wants("us/events")
    assert not made.wants("events")
    made._fail("eu", TransientError("down"))
    assert not made.wants("eu/events")


class Tasks(Reading):
    def __init__(self, *parts):
        self.parts = parts

    def batches(self, task, notes):
        notes.schemas[7] = RegistrySchema(7, "AVRO", "x")
        notes.incomplete += 1
        yield pa.record_batch({"n": pa.array(self.parts[task])})

    def sparing(self):
        return Tasks([99])


def test_readings_are_one_after_the_other_each_row_with_its_source_and_schemas_with_its_registry():
    reading = SeveralReadings([NamedReading("eu", "", Tasks([1, 2], [3])), NamedReading("us", "us", Tasks([4]))])
    notes = ReadNotes()
    rows = [row for task in range(reading.tasks) for batch in reading.batches(task, notes) for row in batch.to_pylist()]
    assert rows == [{"n": n, "source": "eu" if n < 4 else "us"} for n in (1, 2, 3, 4)]
    assert {i: schema.schema_id for i, schema in notes.schemas.items()} == {7: 7, "us/7": "us/7"}
    assert notes.incomplete == 3
    assert (reading.tasks, len(reading.parts), reading.sparing().tasks) == (3, 3, 2)
    with pytest.raises(IndexError):
        next(reading.batches(3, notes))


def test_a_source_without_records_in_a_batch_has_no_task(made):
    asked = Counter()

    def reading(name):
        def made_of(batch):
            asked[name] += 1
            assert {p.source for p in batch.end} == {name}
            return Tasks([1])

        return made_of

    for name in ("eu", "us"):
        scripted(made, name).reading = reading(name)
    made.reading(MicroBatch({at("eu"): 0, at("us"): 5}, {at("eu"): 3, at("us"): 5}))
    assert asked == {"eu": 1}


def test_assets_of_a_source_have_its_name_and_subjects_that_of_their_registry():
    settings = load_settings(
        kafka_topic="a",
        schema_registry_url="http://eu",
        sources={
            "eu": {},
            "us": {"schema_registry_url": "http://us"},
            "asia": {"kafka_topic": "b", "schema_registry_url": "http://us"},
        },
    )
    keys = [upstream.key for upstream in SeveralSources.upstreams(settings)]
    assert keys == [
        ("kafka", "eu", "a"),
        ("schema_registry", "a-value"),
        ("kafka", "us", "a"),
        ("schema_registry", "us", "a-value"),
        ("kafka", "asia", "b"),
        ("schema_registry", "us", "b-value"),
    ]
    assert SeveralSources.asset_key(settings, "us/a") == ("kafka", "us", "a")
    assert SeveralSources.subject_key(settings, "us/a-value") == ("schema_registry", "us", "a-value")
    assert SeveralSources.subject_key(settings, "a-value") == ("schema_registry", "a-value")
    assert SeveralSources.named_subjects(settings) == ("a-value", "us/a-value", "us/b-value")
    assert SeveralSources.address(settings, "us/a") == "kafka://localhost:9092/a"
    assert SeveralSources.name(settings) == "eu: a; us: a; asia: b"
