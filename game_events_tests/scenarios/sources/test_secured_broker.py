"""Logins and certificates on a real broker, for both clients: the driver's (librdkafka) and Spark's (Java)."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import ConfigurationError
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.factory import make_source
from game_events.sources.source import MicroBatch
from game_events_tests.support.offsets import by_partition, splits
from game_events_tests.support.reconciliation import count
from game_events_tests.support.servers.secured_broker import CLIENTS, KEY_PASSWORD, MECHANISMS, PASSWORD, secured_broker
from game_events_tests.support.sources import read_by_workers, records
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import framed, make_topic

WRONG = {"secret": "wr0ng-one"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def topic(broker, make_settings):
    """A topic with three events; gives settings for it."""
    plain = make_settings(kafka_bootstrap_servers=broker.clear)
    make_topic(plain)
    producer = Producer({"bootstrap.servers": broker.clear})
    for value in framed(plain, [Event("uno")] * 3):
        producer.produce(plain.kafka_topic, value, partition=0)
    assert producer.flush(30) == 0

    def make(where, options):
        return make_settings(kafka_bootstrap_servers=where, kafka_options=options)

    return make


@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
def test_every_mechanism_serves_the_driver_and_sparks_workers_and_no_plan_shows_the_password(broker, topic, spark, tls, capsys):
    for mechanism in MECHANISMS:
        settings = topic(broker.tls if tls else broker.sasl, broker.options(mechanism, tls=tls))
        found = make_source(settings)
        now = found.snapshot()
        assert by_partition(now.latest) == {0: 3}
        rows = read_by_workers(spark, found, MicroBatch(now.earliest, now.latest))
        assert rows.count() == 3
        rows.explain(True)
    said = capsys.readouterr()
    assert "MapInArrow" in said.out
    assert "pl4nted" not in said.out + said.err


@pytest.mark.parametrize("how", CLIENTS)
def test_a_broker_that_wants_a_clients_certificate_serves_driver_and_workers_and_no_plan_shows_key_or_password(
    broker, topic, spark, how, capsys
):
    settings = topic(broker.mutual, broker.with_certificate(how))
    found = make_source(settings)
    now = found.snapshot()
    assert by_partition(now.latest) == {0: 3}
    rows = read_by_workers(spark, found, MicroBatch(now.earliest, now.latest))
    assert rows.count() == 3
    rows.explain(True)
    said = "".join(capsys.readouterr())
    assert "MapInArrow" in said
    assert "PRIVATE KEY" not in said
    assert KEY_PASSWORD not in said


@pytest.mark.parametrize("how", ["no certificate", "wrong password of the key", "wrong password of the store"])
def test_a_client_without_its_certificate_or_the_password_of_its_key_is_told_so_without_repeating_it(broker, topic, how):
    options = {
        "no certificate": {"security.protocol": "SSL", "ssl.ca.location": str(broker.authority)},
        "wrong password of the key": broker.with_certificate(CLIENTS[0], "wr0ng-one"),
        "wrong password of the store": broker.with_certificate("pkcs12", "wr0ng-one"),
    }[how]
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_KAFKA_OPTIONS") as caught:
        make_source(topic(broker.mutual, options), 5).snapshot()
    assert "wr0ng-one" not in str(caught.value)


def test_a_whole_run_over_scram_and_tls(broker, topic, make_pipeline):
    settings = topic(broker.tls, broker.options("SCRAM-SHA-512", tls=True))
    assert refresh(make_pipeline(settings)).success
    assert count(settings, "silver_uno_events") == 3


def test_a_login_that_may_use_no_group_reads_and_learns_which_leader_wrote_the_last_record(broker, topic):
    settings = topic(broker.sasl, broker.options("PLAIN", tls=False))
    broker.forbid_group("game_events")
    client = AdminClient({"bootstrap.servers": broker.sasl, **broker.options("PLAIN", tls=False)})
    group = ConsumerGroupTopicPartitions("game_events")
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        client.list_consumer_group_offsets([group])["game_events"].result(30)
    # The error and its traceback hold each other, and this frame: the client would outlive the broker, and say so on stderr.
    del client
    source = make_source(settings)
    now = source.snapshot()
    assert source.epochs_before(now, now.latest) == now.epochs
    assert len(records(source, MicroBatch(now.earliest, now.latest))) == 3


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_a_configuration_error_that_does_not_repeat_it(broker, topic, mechanism):
    settings = topic(broker.sasl, broker.options(mechanism, tls=False, **WRONG))
    with pytest.raises(ConfigurationError, match=r"(?i)authentication.*check GAME_EVENTS_KAFKA_OPTIONS") as caught:
        make_source(settings, 5).snapshot()
    assert "wr0ng-one" not in str(caught.value)


def test_a_broker_whose_certificate_nobody_trusts_or_that_has_another_name_is_refused_with_the_cause(broker, topic):
    strange = topic(broker.tls, broker.options("PLAIN", tls=True, authority=broker.stranger))
    by_number = topic(f"127.0.0.1:{broker.tls_port}", broker.options("PLAIN", tls=True))
    options = broker.options("PLAIN", tls=True)
    del options["ssl.ca.location"]
    for settings in (strange, by_number, topic(broker.tls, options)):
        with pytest.raises(ConfigurationError, match=r"(?i)ssl.*certificate.*check GAME_EVENTS_KAFKA_OPTIONS"):
            make_source(settings, 5).snapshot()


@pytest.mark.parametrize("wrong", ["password", "authority", "name"])
def test_sparks_workers_refuse_too_by_themselves_and_say_no_password(broker, topic, spark, wrong):
    more = {"password": WRONG, "authority": {"authority": broker.stranger}, "name": {}}[wrong]
    where = f"127.0.0.1:{broker.tls_port}" if wrong == "name" else broker.tls
    settings = topic(where, broker.options("PLAIN", tls=True, **more))
    part = MicroBatch(*(splits(settings.kafka_topic, "any", {0: at}) for at in (0, 3)))
    with pytest.raises((PySparkException, Py4JJavaError), match=r"ConfigurationError.*GAME_EVENTS_KAFKA_OPTIONS") as caught:
        read_by_workers(spark, make_source(settings), part).count()
    assert "wr0ng-one" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
