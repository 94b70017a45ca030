"""A broker that lost records which bronze has, and has given their offsets to others since."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError
from game_events.jvm import jars
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.server_process import HOST, Ports, free_ports, stop
from game_events.workers.results import StagedRows
from game_events_tests.support.pipelines import stage_by_hand
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.topics import make_topic, put


class OwnBroker:
    """A broker that is stopped and started again on its data."""

    def __init__(self, folder):
        kafka_port, controller, registry = free_ports(3)
        self.folder, self.ports = folder, Ports(kafka=kafka_port, controller=controller, registry=registry)
        folder.mkdir()

    def __enter__(self):
        log = self.folder / "kafka.log"
        self.process = local_stack.start_kafka(jars.folder_of(jars.STACK) / "kafka", self.folder, ports=self.ports, log=log)
        until(lambda: local_stack.kafka_is_healthy(self.ports.kafka), what="the broker")

    def __exit__(self, *_):
        stop([self.process])


def test_a_partition_that_was_restored_from_a_copy_and_has_grown_past_bronze_stops_the_run(tmp_path, stack, monkeypatch):
    stage_by_hand(monkeypatch, lambda *_: StagedRows([], [], set(), set(), Counter()))
    broker = OwnBroker(tmp_path / "broker")
    settings = load_settings(
        kafka_bootstrap_servers=f"{HOST}:{broker.ports.kafka}",
        schema_registry_url=stack.schema_registry_url,
        kafka_topic="events",
        lakehouse=str(tmp_path / "lakehouse"),
    )
    data, copy = broker.folder / local_stack.DATA / "events-0", tmp_path / "copy"
    records = [b"no frame"]

    def run():
        pipeline = Pipeline(settings, no_spark)
        load_bronze(pipeline, RunReport())
        (split,) = pipeline.source.snapshot().latest
        return pipeline.bronze.open().transaction_version(split.app)

    with broker:
        make_topic(settings)
        put(settings, records * 5)
        assert run() == 5
    shutil.copytree(data, copy)
    with broker:
        put(settings, records * 5)
        assert run() == 10, "another leader that has everything is no fault"
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with broker:
        put(settings, records * 7)
        with pytest.raises(DataError, match=r"events\[0\]: bronze is at 10 and has read .* leader epoch \d+, the record"):
            run()
