"""Which leaders wrote the records before bronze's positions: of any number of partitions, whatever is behind them."""

from __future__ import annotations

from game_events.sources.factory import make_source
from game_events.sources.kafka.source import PARTITIONS_AT_ONCE
from game_events_tests.support.worlds.topics import make_topic, put


def test_a_real_broker_answers_for_more_partitions_than_one_group_with_records_behind_each_position(make_settings):
    settings = make_settings()
    make_topic(settings, PARTITIONS_AT_ONCE + 6)
    for partition in range(0, PARTITIONS_AT_ONCE + 6, 2):
        put(settings, [b"record"] * 40, partition)
    source = make_source(settings)
    now = source.snapshot()
    found = source.epochs_before(now, dict.fromkeys(now.latest, 35))
    assert found == {split: now.epochs[split] for split in now.latest if split.number % 2 == 0}
