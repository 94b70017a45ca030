"""Options and causes, without a broker."""

import pytest
from confluent_kafka import KafkaError

from game_events.errors import ConfigurationError, TransientError
from game_events.producer.kafka_writer import KafkaWriter, Pacer
from game_events.settings import Settings
from game_events.sources.kafka_client import CauseMemory, client_options, ensure_topic

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = KafkaError(KafkaError._AUTHENTICATION, "bad password")
BROKEN = KafkaError(KafkaError._TRANSPORT, "connection refused")


@pytest.mark.parametrize("heard", [[REFUSED, DOWN, BROKEN], [DOWN, REFUSED], [BROKEN, REFUSED]])
def test_a_refused_login_is_what_counts(heard):
    memory = CauseMemory("broker:1")
    for error in heard:
        memory(error)
    error = memory.explain("listing topics", BROKEN)
    assert isinstance(error, ConfigurationError)
    assert "bad password" in str(error)
    assert "broker:1" in str(error)


def test_an_unreachable_broker_may_come_back():
    memory = CauseMemory("broker:1")
    memory(BROKEN)
    memory(DOWN)
    error = memory.explain("listing topics")
    assert isinstance(error, TransientError)
    assert "connection refused" in str(error)


def test_the_settings_options_win_but_not_over_the_brokers_address():
    settings = Settings(kafka_bootstrap_servers="right:1", kafka_options={"linger.ms": "7", "bootstrap.servers": "wrong:1"})
    options = client_options(settings, CauseMemory("right:1"), {"linger.ms": 20, "acks": "all"})
    assert (options["linger.ms"], options["acks"], options["bootstrap.servers"]) == ("7", "all", "right:1")


@pytest.mark.parametrize("use", [lambda settings: ensure_topic(settings, 1), KafkaWriter])
def test_an_unknown_option_is_named_and_its_value_is_not(use):
    with pytest.raises(ConfigurationError, match=r"no\.such\.option") as caught:
        use(Settings(kafka_options={"no.such.option": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_an_undelivered_record_names_its_partition():
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka_topic="games", kafka_options={"message.timeout.ms": "300"})
    with pytest.raises(TransientError, match=r"games\[.*\]"), KafkaWriter(settings) as writer:
        writer.write(b"value", b"key", "rummy")


def test_an_error_inside_is_not_hidden_by_the_flush():
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    with pytest.raises(KeyboardInterrupt), KafkaWriter(settings) as writer:
        writer.write(b"value", b"key", "rummy")
        raise KeyboardInterrupt


def test_the_pacer_holds_the_rate(monkeypatch):
    slept = []
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setattr("time.sleep", slept.append)
    pacer = Pacer(100)
    assert pacer.chunk == 5
    pacer.pace(50)
    Pacer(None).pace(50)
    assert slept == [0.5]
