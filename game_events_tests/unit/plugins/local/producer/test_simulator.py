"""The repeatable stream of single records; the bulk load's pool and its exact truth."""

import struct
from collections import Counter
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from game_events.plugins.local.producer.messages import BATCH
from game_events.plugins.local.producer.produce import ManifestBuilder, encode_pool
from game_events.plugins.local.producer.simulator import (
    BulkSimulation,
    GameEvent,
    PoisonKind,
    Simulation,
)
from game_events.plugins.local.settings import DEFAULT_GAMES
from game_events_tests.support.producer import SCHEMA_IDS, VERSION_OF, assert_true, decode, encoder, values


def test_the_defaults_are_seven_games_with_two_versions_of_a_hundred_records():
    events = list(Simulation().events())
    assert len(events) == 7 * 2 * 100
    for game in DEFAULT_GAMES:
        for version in (1, 2):
            assert sum(event.game == game and event.version == version for event in events) == 100


def test_the_same_arguments_give_the_same_bytes():
    faulty = {"late_share": 0.1, "duplicate_share": 0.2, "poison_share": 0.2, "versions": 3}
    assert values(Simulation(seed=5, **faulty)) == values(Simulation(seed=5, **faulty))
    assert values(Simulation(seed=5)) != values(Simulation(seed=6))


def test_a_seed_means_the_same_events_in_every_process():
    assert next(Simulation(seed=1).events()) == GameEvent(
        version=1,
        game="rummy",
        gamer="rummy-0008",
        time=datetime(2024, 1, 1, 0, 0, 0, 29_002, tzinfo=UTC),
        values=("device_2",),
        custom=("c0-51a7bf43497d",),
    )


def test_faults_change_no_event():
    plain = list(Simulation(seed=3).events())
    faulty = Simulation(seed=3, duplicate_share=0.3, poison_share=0.3)
    assert list(faulty.events()) == plain
    assert [r.event for r in faulty.records() if r.poison is None and not r.duplicate] == plain


def test_versions_change_record_by_record():
    assert [event.version for event in islice(Simulation(versions=3).events(), 7)] == [1, 2, 3, 1, 2, 3, 1]


def test_an_explicit_interleaving_is_cycled():
    simulation = Simulation(games=("uno",), versions=(1, 4), interleaving=(4, 4, 1), records_per_game_and_version=4)
    assert [event.version for event in simulation.events()] == [4, 4, 1, 4, 4, 1, 1, 1]


def test_an_interleaving_must_hold_every_version():
    with pytest.raises(ValidationError, match="exactly the versions"):
        Simulation(versions=3, interleaving=(1, 2))


@pytest.mark.parametrize("bad", [{"games": ("a", "a")}, {"games": ()}, {"versions": 11}, {"versions": (0,)}, {"versions": ()}])
def test_nonsense_is_refused(bad):
    with pytest.raises(ValidationError):
        Simulation(**bad)


def test_late_events_lie_days_before_the_others():
    simulation = Simulation(late_share=0.2, seed=2)
    late = sum(event.time < simulation.base_time for event in simulation.events())
    assert 0.1 < late / len(list(simulation.events())) < 0.3


def test_some_custom_columns_are_unset():
    unset = sum(value is None for event in Simulation().events() for value in event.custom)
    assert 0 < unset < 300


def test_a_duplicate_is_the_same_bytes_again():
    simulation = Simulation(duplicate_share=0.5)
    records = list(simulation.records())
    encoded = values(simulation)
    again = [index for index, record in enumerate(records) if record.duplicate]
    assert again
    assert all(encoded[index] == encoded[index - 1] for index in again)


def test_an_event_of_version_2_has_about_80_to_100_bytes():
    sizes = [len(value) for value in values(Simulation(versions=(2,)))]
    assert 75 <= sum(sizes) / len(sizes) <= 100


@given(
    games=st.integers(1, 4),
    per=st.integers(1, 6),
    cycle=st.lists(st.integers(1, 4), min_size=1, max_size=7),
)
def test_any_interleaving_sends_every_version_exactly_as_often_as_asked(games, per, cycle):
    names = tuple(f"g{index}" for index in range(games))
    versions = tuple(set(cycle))
    simulation = Simulation(games=names, versions=versions, interleaving=tuple(cycle), records_per_game_and_version=per)
    counts: dict = {}
    for event in simulation.events():
        counts[event.game, event.version] = counts.get((event.game, event.version), 0) + 1
    assert counts == {(name, version): per for name in names for version in versions}


def sent_values(simulation):
    messages = encode_pool(simulation.pool(), encoder())
    return [message["value"] for batch in simulation.batches(messages) for message in batch]


def manifest_of(simulation):
    pool, builder = simulation.pool(), ManifestBuilder()
    for record, times in zip(pool, simulation.times_sent(len(pool)), strict=True):
        builder.add(record, times)
    return builder.build("t", 0, SCHEMA_IDS)


@settings(max_examples=30)
@given(
    records=st.integers(1, 400),
    pool=st.integers(1, 60),
    games=st.integers(1, 5),
    versions=st.integers(1, 3),
    hot=st.none() | st.floats(0, 1),
    bad=st.floats(0, 1),
)
def test_the_truth_is_exact(records, pool, games, versions, hot, bad):
    simulation = BulkSimulation(
        records=records, pool_per_version=pool, games=games, versions=versions, hot_share=hot, gamers_per_game=3, bad_share=bad
    )
    assert_true(manifest_of(simulation), sent_values(simulation))


@pytest.mark.parametrize("records", [BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 5])
def test_exactly_the_asked_number_is_sent(records):
    simulation = BulkSimulation(records=records, pool_per_version=6_001)
    assert_true(manifest_of(simulation), sent_values(simulation))


def test_a_count_of_games_names_them():
    assert BulkSimulation(records=1, games=3).game_names == ("game_0001", "game_0002", "game_0003")


def test_every_game_gets_every_version():
    records = manifest_of(BulkSimulation(records=10_000, games=20, versions=2)).records
    assert len(records) == 20
    assert all(set(by_version) == {1, 2} for by_version in records.values())


def test_the_hot_game_gets_its_share():
    manifest = manifest_of(BulkSimulation(records=20_000, games=50, hot_share=0.9))
    assert sum(manifest.records["game_0001"].values()) / 20_000 == pytest.approx(0.9, abs=0.02)
    assert len(manifest.records) == 50


def test_what_is_sent_more_than_once_counts_as_duplicates_unless_it_is_bad():
    simulation = BulkSimulation(records=100, pool_per_version=10, versions=1, bad_share=0.5)
    values = sent_values(simulation)
    good = [value for value in values if not isinstance(decode(value), str)]
    assert 0 < len(good) < len(values)
    assert manifest_of(simulation).duplicates == len(good) - len(set(good))


def test_bad_payloads_get_their_share_in_every_version_and_can_be_read_by_nobody():
    simulation = BulkSimulation(records=20_000, versions=2, bad_share=0.1)
    bad = [value for value in sent_values(simulation) if decode(value) == "truncated"]
    assert manifest_of(simulation).poison == {PoisonKind.TRUNCATED: len(bad)}
    assert len(bad) / 20_000 == pytest.approx(0.1, abs=0.01)
    by_version = Counter(VERSION_OF[struct.unpack(">I", value[1:5])[0]] for value in bad)
    assert by_version[1] == pytest.approx(by_version[2], rel=0.2)


def test_a_share_of_bad_payloads_leaves_the_others_as_they_were():
    clean, spoilt = (sent_values(BulkSimulation(records=500, bad_share=share)) for share in (0, 0.2))
    assert all(a == b for a, b in zip(clean, spoilt, strict=True) if not isinstance(decode(b), str))
    assert clean != spoilt


def test_larger_records_are_the_same_events_with_longer_values() -> None:
    plain, larger = (BulkSimulation(records=500, pool_per_version=250, more_bytes=more).pool() for more in (0, 225))
    for small, large in zip(plain, larger, strict=True):
        before, after = small.event, large.event
        assert (after.game, after.gamer, after.time, after.values) == (
            before.game,
            before.gamer,
            before.time,
            before.values,
        )
        longer = [(one, other) for one, other in zip(before.custom, after.custom, strict=True) if one != other]
        assert len(longer) == any(before.custom)
        assert all(other.startswith(one) and len(other) == len(one) + 225 for one, other in longer)
    more = {value for record in larger for value in record.event.custom if value and len(value) > 200}
    assert len(more) > 450, "each value is another one"
