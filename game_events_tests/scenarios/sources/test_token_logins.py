"""Logins by tokens of a real token server: at a real broker that checks them, for driver and workers, and at the registry."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.pipeline.runs.preflight import environment_checks, run_checks
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.factory import make_source
from game_events.sources.kafka import client
from game_events.sources.source import MicroBatch
from game_events_tests.scenarios.cli.test_secrets import run as run_loud
from game_events_tests.support.offsets import by_partition, splits
from game_events_tests.support.reconciliation import count
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.servers.secured_broker import TokenBroker, make_certificates, token_broker
from game_events_tests.support.servers.token_server import CLIENT, SCOPE, SECRET, TokensByHttp, TokenServer, token_server
from game_events_tests.support.sources import read_by_workers, records
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import framed, make_topic

#: Seconds that a token is valid: of this broker's connections each must log in again before.
LIFE_S = 5
WRONG = "wr0ng-one"


@pytest.fixture(scope="module")
def tokens():
    with token_server() as server:
        yield server


@pytest.fixture(scope="module")
def broker(tokens, tmp_path_factory):
    with token_broker(tmp_path_factory.mktemp("tokens"), tokens) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(tokens):
    """The token server gives each test what it should."""
    tokens.lifetime_s, tokens.signs_wrong, tokens.answer = 300, False, lambda: None


@dataclass
class Topic:
    """A topic on that broker, whose events are sent by the port that wants no login."""

    broker: TokenBroker
    tokens: TokenServer
    make_settings: Callable[..., Settings]
    plain: Settings

    def send(self, events: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.clear})
        for value in framed(self.plain, [Event("uno")] * events):
            producer.produce(self.plain.kafka_topic, value, partition=0)
        assert producer.flush(30) == 0

    def settings(self, options: dict[str, str] | None = None, **more: object) -> Settings:
        """With a login by tokens."""
        login = self.broker.options(self.tokens) | (options or {})
        return self.make_settings(kafka_bootstrap_servers=self.broker.sasl, kafka_options=login, **more)


@pytest.fixture
def topic(broker, tokens, make_settings):
    """A topic with three events."""
    plain = make_settings(kafka_bootstrap_servers=broker.clear)
    make_topic(plain)
    made = Topic(broker, tokens, make_settings, plain)
    made.send(3)
    return made


def test_driver_and_workers_log_in_by_tokens_and_registry_too_and_a_later_run_gets_new_ones(tokens, topic, make_pipeline):
    tokens.lifetime_s = LIFE_S
    tokens.scopes.clear()
    before = len(tokens.given)
    with registry_proxy(topic.plain.schema_registry_url) as proxy:
        proxy.takes = tokens.is_valid
        settings = topic.settings(
            schema_registry_url=proxy.url,
            schema_registry_token_url=tokens.url,
            schema_registry_client_id=CLIENT,
            schema_registry_client_secret=SECRET,
        )
        pipeline = make_pipeline(settings)
        assert refresh(pipeline).success
        assert count(settings, "silver_uno_events") == 3
        assert proxy.asked
        assert tokens.scopes == {SCOPE}
        wait_until_ended(tokens, tokens.given[before:])
        topic.send(2)
        assert refresh(pipeline).success
    assert count(settings, "silver_uno_events") == 5


def wait_until_ended(tokens, given):
    until(lambda: not any(map(tokens.is_valid, given)), what="the end of these tokens")


def test_a_read_goes_on_when_tokens_end_and_after_a_pause_without_a_record(tokens, topic):
    tokens.lifetime_s = LIFE_S
    before = len(tokens.given)
    source = make_source(topic.settings())
    now = source.snapshot()
    (partition,) = now.latest
    more = 4
    part = MicroBatch(now.latest, {partition: 3 + more})
    read_with = len(tokens.given)

    def send_while_tokens_end():
        until(lambda: len(tokens.given) > read_with, what="the reader's token")
        for _ in range(more - 1):
            topic.send(1)
            wait_until_ended(tokens, tokens.given[before:])
        topic.send(1)

    producing = threading.Thread(target=send_while_tokens_end)
    producing.start()
    read = records(source, part)
    producing.join()
    assert [row["offset"] for row in read] == list(range(3, 3 + more))
    assert len(tokens.given) - read_with >= more - 1
    wait_until_ended(tokens, tokens.given[before:])
    assert len(records(source, part)) == more
    assert len(source.snapshot().latest) == 1


def test_a_read_outlives_a_token_server_that_gives_no_token_until_after_the_last_one_has_ended(tokens, topic):
    tokens.lifetime_s = LIFE_S
    before = len(tokens.given)
    source = make_source(topic.settings())
    (partition,) = source.snapshot().latest
    given = len(tokens.given)

    def send_when_tokens_are_there_again():
        until(lambda: len(tokens.given) > given, 30, what="the reader's token")
        tokens.answer = lambda: (200, b"{}")
        wait_until_ended(tokens, tokens.given[before:])
        tokens.answer = lambda: None
        topic.send(1)

    sending = threading.Thread(target=send_when_tokens_are_there_again)
    sending.start()
    read = records(source, MicroBatch({partition: 0}, {partition: 4}))
    sending.join()
    assert [row["offset"] for row in read] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("step", "kind", "said"),
    [
        ("no such client", ConfigurationError, r"refuses the client.*invalid_client.*check sasl\.oauthbearer\.client\.id"),
        ("no token server", TransientError, r"http://localhost:9/token gives no token.*connect.*is it up"),
        ("busy token server", TransientError, r"Does http://localhost:\d+/token give tokens\?"),
        ("foreign token", ConfigurationError, r"invalid_token.*it refuses the token of http://localhost"),
    ],
)
def test_a_refused_login_says_which_step_failed_and_what_to_check(tokens, topic, step, kind, said):
    tokens.signs_wrong = step == "foreign token"
    if step == "busy token server":
        tokens.answer = lambda: (503, b"busy")
    options = {
        "no such client": {"sasl.oauthbearer.client.secret": WRONG},
        "no token server": {"sasl.oauthbearer.token.endpoint.url": "http://localhost:9/token"},
    }.get(step)
    settings = topic.settings(options)
    with pytest.raises(kind, match=said) as caught:
        make_source(settings, 5).snapshot()
    assert WRONG not in str(caught.value)

    def is_named_by_doctor():
        # It waits for seconds alone: on a busy machine the broker's answer may come later.
        (kafka,) = run_checks({"kafka": environment_checks(settings)["kafka"]}, settings)
        assert not kafka.ok
        return re.search(said, kafka.detail)

    until(is_named_by_doctor, what="doctor's reason")


def test_doctor_names_the_logins_and_no_secret(tokens, topic):
    settings = topic.settings(schema_registry_token=WRONG)
    checks = environment_checks(settings)
    kafka, registry = run_checks({name: checks[name] for name in ("kafka", "schema registry")}, settings)
    assert f"login OAUTHBEARER of client {CLIENT}, tokens of {tokens.url}" in kafka.detail
    assert "login by a fixed token" in registry.detail
    assert SECRET not in kafka.detail
    assert WRONG not in registry.detail


def test_workers_whose_client_is_refused_fail_with_the_step_and_no_plan_shows_the_secret(topic, spark, capsys):
    settings = topic.settings({"sasl.oauthbearer.client.secret": WRONG})
    part = MicroBatch(*(splits(settings.kafka_topic, "any", {0: at}) for at in (0, 3)))
    rows = read_by_workers(spark, make_source(settings), part)
    rows.explain(True)
    with pytest.raises((PySparkException, Py4JJavaError), match=r"ConfigurationError.*refuses the client") as caught:
        rows.count()
    said = capsys.readouterr()
    assert WRONG not in str(caught.value) + said.out + said.err


def test_a_token_server_with_an_authority_of_its_own_is_trusted_by_driver_and_workers_if_the_options_have_it(
    tokens, topic, spark, tmp_path
):
    authority, stranger = make_certificates(tmp_path)
    with token_server(tmp_path / "broker.pem") as secure:
        secure.take_keys_of(tokens)
        url = {"sasl.oauthbearer.token.endpoint.url": secure.url}
        for wrong in ({}, {"https.ca.location": str(stranger)}):
            with pytest.raises(ConfigurationError, match=r"certificate of https://localhost.*is not trusted.*TLS_CA_FILE"):
                make_source(topic.settings(url | wrong), 5).snapshot()
        by_setting = topic.settings(url, tls_ca_file=authority)
        assert by_partition(make_source(by_setting).snapshot().latest) == {0: 3}
        source = make_source(topic.settings(url | {"https.ca.location": str(authority)}))
        now = source.snapshot()
        assert by_partition(now.latest) == {0: 3}
        asked = secure.asked
        rows = read_by_workers(spark, source, MicroBatch(now.earliest, now.latest))
        assert rows.count() == 3
        assert secure.asked > asked


def test_a_plugins_login_gives_tokens_in_driver_and_workers(tokens, topic, spark, monkeypatch):
    settings = topic.settings().model_copy(update={"kafka_options": {}})
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": TokensByHttp(tokens.url)}
    monkeypatch.setattr(client, "_login_of_a_plugin", lambda _: login)
    source = make_source(settings)
    now = source.snapshot()
    asked = tokens.asked
    assert read_by_workers(spark, source, MicroBatch(now.earliest, now.latest)).count() == 3
    assert tokens.asked > asked
    assert f"login OAUTHBEARER, tokens of {tokens.url}" in source.check()


def test_no_secret_and_no_token_is_in_any_log_event_plan_or_table(broker, tokens, topic, tmp_path):
    with registry_proxy(topic.plain.schema_registry_url) as proxy:
        proxy.takes = tokens.is_valid
        settings = topic.settings()
        environment = os.environ | {
            "DAGSTER_HOME": str(tmp_path / "dagster"),
            "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
            "GAME_EVENTS_LAKEHOUSE": str(tmp_path / "lakehouse"),
            "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS": broker.sasl,
            "GAME_EVENTS_KAFKA_TOPIC": settings.kafka_topic,
            "GAME_EVENTS_KAFKA_OPTIONS": json.dumps(broker.options(tokens) | {"debug": "all", "log_level": "7"}),
            "GAME_EVENTS_SCHEMA_REGISTRY_URL": proxy.url,
            "GAME_EVENTS_SCHEMA_REGISTRY_TOKEN_URL": tokens.url,
            "GAME_EVENTS_SCHEMA_REGISTRY_CLIENT_ID": CLIENT,
            "GAME_EVENTS_SCHEMA_REGISTRY_CLIENT_SECRET": SECRET,
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
        }
        given = len(tokens.given)
        wrong = {"GAME_EVENTS_SCHEMA_REGISTRY_CLIENT_SECRET": WRONG}
        (tmp_path / "dagster").mkdir()
        steps = [("run", {}, "run --json"), ("looked", {}, "doctor --json", "log --json"), ("wrong", wrong, "doctor --json")]
        codes = run_loud(tmp_path, environment, *steps)
    assert codes == [0, 0, 1], (tmp_path / "run.err").read_text(errors="replace")[-3000:]
    assert b"rdkafka" in (tmp_path / "run.err").read_bytes()
    assert len(tokens.given) - given >= 3
    needles = [text.encode() for text in (SECRET, WRONG, *tokens.given[given:])]
    needles += [base64.b64encode(f"{CLIENT}:{secret}".encode()).rstrip(b"=") for secret in (SECRET, WRONG)]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [(path, needle) for path in written for needle in needles if needle in path.read_bytes()] == []
    said = (tmp_path / "wrong.out").read_text()
    assert "refuses the client" in said
    assert "GAME_EVENTS_SCHEMA_REGISTRY_CLIENT_ID" in said
