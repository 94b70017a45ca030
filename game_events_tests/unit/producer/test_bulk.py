"""The bulk load's pool and its exact truth."""

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.producer.bulk import BATCH, BulkSimulation, encode_pool
from game_events.producer.events import PoisonKind
from game_events.producer.manifest import ManifestBuilder
from game_events_tests.support.examples import examples
from game_events_tests.support.producer import SCHEMA_IDS, VERSION_OF, assert_true, decode, encoder


def sent_values(simulation):
    messages = encode_pool(simulation.pool(), encoder())
    return [message["value"] for batch in simulation.batches(messages) for message in batch]


def manifest_of(simulation):
    pool, builder = simulation.pool(), ManifestBuilder()
    for record, times in zip(pool, simulation.times_sent(len(pool)), strict=True):
        builder.add(record, times)
    return builder.build("t", 0, SCHEMA_IDS)


@examples(30)
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
