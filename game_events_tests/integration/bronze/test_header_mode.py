"""Records whose schema stands in a header, through the whole pipeline.

The local registry has no GUIDs: the client's own ``mock://`` registry stands in for it. Broker, Spark and tables are real.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.unit.decoding.test_formats import Producer as Serializers


@pytest.fixture
def serializers(monkeypatch):
    """Confluent's serializers in header mode, and the pipeline on the same registry."""
    made = Serializers("headers-of-the-pipeline", in_header=True)
    monkeypatch.setattr("game_events.schema_registry.registry_client", lambda *_: made.client)
    return made


def test_records_with_their_schema_in_a_header_reach_silver_and_gold(serializers, make_settings, make_pipeline):
    settings = make_settings(schema_registry_url="mock://headers-of-the-pipeline")
    ensure_topic(settings, 1)
    kafka = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    kinds = ("PROTOBUF", "AVRO", "JSON")
    for _ in range(3):
        for kind in kinds:
            value, headers = serializers.produce(kind)
            kafka.produce(settings.kafka_topic, value, headers=headers)
    # Rubbish in the header, none at all in it, and a tombstone that has one.
    good = serializers.produce("AVRO")
    kafka.produce(settings.kafka_topic, good[0], headers=[("__value_schema_id", b"\x07rubbish")])
    kafka.produce(settings.kafka_topic, good[0], headers=[("__value_schema_id", None)])
    kafka.produce(settings.kafka_topic, None, headers=good[1])
    assert kafka.flush(30) == 0

    report = refresh(make_pipeline(settings))

    assert report.success, report.errors
    assert count(settings, BRONZE) == 9
    found = rows(settings, BRONZE, "SELECT _schema_guid, _schema_id, count(*) FROM t GROUP BY ALL ORDER BY ALL")
    assert [(guid is not None, number, n) for guid, number, n in found] == [(True, None, 3)] * 3
    reasons = sorted(r[0] for r in rows(settings, QUARANTINE, "SELECT reason FROM t"))
    assert reasons == ["BAD_MAGIC", "TOMBSTONE", "TOO_SHORT"]
    games = [t.game for t in report.of("silver")]
    assert sum(count(settings, f"silver_{game}_events") for game in games) == 9
    # A new process has only the archive and the registry: it still knows the GUIDs.
    assert refresh(make_pipeline(settings)).tables == []
    assert {r[0] for r in rows(settings, "schemas", "SELECT schema_guid FROM t")} == {guid for guid, _, _ in found}
