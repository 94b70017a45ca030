"""The repeatable stream."""

from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from game_events.producer.events import EPOCH, GameEvent, from_microseconds, microseconds
from game_events.producer.simulator import DEFAULT_GAMES, Simulation
from game_events_tests.support.producer import values


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
        timestamp_us=1_704_067_200_029_002,
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
    late = sum(from_microseconds(event.timestamp_us) < simulation.base_time for event in simulation.events())
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


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_microseconds_are_exact(moment):
    assert from_microseconds(microseconds(moment)) == moment
    assert microseconds(EPOCH) == 0


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
