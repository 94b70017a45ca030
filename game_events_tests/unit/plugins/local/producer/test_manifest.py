"""The manifest, against a recount from bytes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.errors import DataError
from game_events.plugins.local.producer.produce import GamerTruth, Manifest, ManifestBuilder
from game_events.plugins.local.producer.simulator import PoisonKind, Simulation
from game_events_tests.support.producer import SCHEMA_IDS, assert_true, decode, values

FAULTY = Simulation(versions=3, seed=4, late_share=0.1, duplicate_share=0.1, poison_share=0.1)


def manifest_of(simulation, topic="t"):
    builder = ManifestBuilder()
    for record in simulation.records():
        builder.add(record)
    return builder.build(topic, simulation.seed, {v: SCHEMA_IDS[v] for v in simulation.version_numbers})


def test_it_says_what_the_bytes_say():
    assert_true(manifest_of(FAULTY), values(FAULTY))


share = st.floats(0, 1)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), late=share, duplicate=share, poison=share, gamers=st.integers(1, 5))
def test_it_says_what_the_bytes_say_for_any_faults(seed, late, duplicate, poison, gamers):
    simulation = Simulation(
        games=("a", "ü"), records_per_game_and_version=4, seed=seed, gamers_per_game=gamers,
        late_share=late, duplicate_share=duplicate, poison_share=poison,
    )  # fmt: skip
    assert_true(manifest_of(simulation), values(simulation))


def test_every_kind_of_poison_occurs_and_none_decodes():
    records, encoded = list(FAULTY.records()), values(FAULTY)
    assert manifest_of(FAULTY).poison.keys() == set(PoisonKind)
    for record, value in zip(records, encoded, strict=True):
        assert (decode(value) == record.poison) == (record.poison is not None)


def test_waves_add_up():
    later = Simulation(seed=9, versions=(2, 5), games=("rummy", "new"), base_time=datetime(2025, 1, 1, tzinfo=UTC))
    merged = manifest_of(FAULTY).merge(manifest_of(later))
    assert_true(merged, values(FAULTY) + values(later))
    assert merged.seeds == (4, 9)
    assert merged.schema_ids == {version: SCHEMA_IDS[version] for version in (1, 2, 3, 5)}


def test_manifests_of_two_topics_or_registries_do_not_merge():
    one = Manifest(topic="a", seeds=(0,), schema_ids={1: 1})
    with pytest.raises(DataError, match="two topics"):
        one.merge(Manifest(topic="b", seeds=(0,), schema_ids={}))
    with pytest.raises(DataError, match="schema id 1 and 2"):
        one.merge(Manifest(topic="a", seeds=(0,), schema_ids={1: 2}))


def test_it_survives_a_file(tmp_path):
    path = tmp_path / "new" / "manifest.json"
    manifest = manifest_of(FAULTY)
    manifest.save(path)
    assert Manifest.load(path) == manifest
    assert [file.name for file in path.parent.iterdir()] == ["manifest.json"]


def test_the_file_is_the_same_for_the_same_arguments(tmp_path):
    manifest_of(FAULTY).save(tmp_path / "a")
    manifest_of(FAULTY).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_timestamps_are_utc_with_microseconds():
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    text = GamerTruth(session_count=1, min_timestamp=moment, max_timestamp=moment).model_dump_json()
    assert '"2024-01-01T00:00:00.000000Z"' in text
