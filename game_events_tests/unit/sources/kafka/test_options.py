"""Options of Kafka's client that a user may set, and how they travel to the workers."""

import pickle

import certifi
import pytest
from confluent_kafka.admin import AdminClient

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.sources.factory import make_source
from game_events.sources.kafka.client import client_options, new_client, refuse_managed, refuse_unusable, with_file_contents
from game_events.sources.source import MicroBatch, Partition

PASSWORD = 'pa"ss\\word'
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "reader",
    "sasl.password": PASSWORD,
}


def test_a_login_and_other_options_reach_the_client_unchanged():
    options = LOGIN | {"client.id": "x", "fetch.wait.max.ms": "5000"}
    assert client_options(Settings(kafka_options=options), {"fetch.wait.max.ms": 20}).items() >= options.items()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("sasl.jaas.config", "sasl.username and sasl.password"),
        ("sasl.login.callback.handler.class", "sasl.username"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("ssl.keystore.type", "ssl.keystore.location"),
        ("ssl.keystore.key", "ssl.key.pem"),
        ("fetch.max.wait.ms", "fetch.wait.max.ms"),
        ("max.poll.records", "leave it out"),
    ],
)
def test_an_option_of_java_s_client_is_refused_with_the_one_to_use_and_without_its_value(name, instead):
    with pytest.raises(ConfigurationError, match=f"{name} is an option of Java's client.*{instead}") as raised:
        refuse_unusable({name: "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_a_pkcs12_file_is_an_option_of_librdkafka():
    refuse_unusable({"ssl.keystore.location": "/keys/client.p12", "ssl.keystore.password": "x"})


@pytest.mark.parametrize("name", ["isolation.level", "group.id", "enable.partition.eof"])
def test_options_that_exactly_once_depends_on_are_refused(name):
    with pytest.raises(ConfigurationError, match=name):
        refuse_managed({name: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.ssl.certificate.verification", "false"),
        ("enable.ssl.certificate.verification", "0"),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.endpoint.identification.algorithm", " "),
    ],
)
def test_no_option_turns_the_check_of_certificates_off(name, value):
    with pytest.raises(ConfigurationError, match=name):
        refuse_unusable(LOGIN | {name: value})


def test_options_that_ask_for_the_check_are_taken():
    refuse_unusable({"enable.ssl.certificate.verification": "true", "ssl.endpoint.identification.algorithm": "HTTPS"})


def test_pem_files_travel_by_their_content_as_workers_may_be_on_other_machines(tmp_path):
    (tmp_path / "ca.pem").write_text("an authority")
    (tmp_path / "key.pem").write_text("a key")
    options = {"ssl.ca.location": str(tmp_path / "ca.pem"), "ssl.key.location": str(tmp_path / "key.pem"), "client.id": "x"}
    assert with_file_contents(options) == {"ssl.ca.pem": "an authority", "ssl.key.pem": "a key", "client.id": "x"}
    of_tokens = {
        "https.ca.location": str(tmp_path / "ca.pem"),
        "sasl.oauthbearer.assertion.private.key.file": str(tmp_path / "key.pem"),
    }
    contents = {"https.ca.pem": "an authority", "sasl.oauthbearer.assertion.private.key.pem": "a key"}
    assert with_file_contents(of_tokens) == contents
    folder = {"ssl.ca.location": str(tmp_path)}
    assert with_file_contents(folder) == folder


def test_a_pem_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere.* cannot be read: No such file"):
        with_file_contents({"ssl.ca.location": str(tmp_path / "nowhere")})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="binary is no PEM file"):
        with_file_contents({"ssl.key.location": str(tmp_path / "binary")})


def test_what_workers_get_shows_no_login_and_can_be_sent():
    split = Partition("t", "id", 0)
    reading = make_source(Settings(kafka_options=LOGIN)).reading(MicroBatch({split: 0}, {split: 3}))
    assert PASSWORD not in repr(reading)
    assert pickle.loads(pickle.dumps(reading)).options["sasl.password"] == PASSWORD  # noqa: S301 - our own bytes


TOKENS = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "reader",
    "sasl.oauthbearer.client.secret": "pl4nted",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
}


def test_a_token_server_is_verified_by_the_authorities_of_the_settings_of_the_options_or_of_this_machine(monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    authorities = certifi.where()
    of_settings = client_options(Settings(kafka_options=TOKENS, tls_ca_file=authorities), {})
    assert of_settings["https.ca.location"] == authorities
    own = client_options(Settings(kafka_options=TOKENS | {"https.ca.pem": "mine"}, tls_ca_file=authorities), {})
    assert "https.ca.location" not in own
    assert "https.ca.location" not in client_options(Settings(kafka_options=LOGIN, tls_ca_file=authorities), {})
    made = new_client(lambda options: options, client_options(Settings(kafka_options=TOKENS), {}))
    assert made["https.ca.location"] == authorities
    assert new_client(lambda options: options, {"client.id": "x"}) == {"client.id": "x"}


class FailingTokens:
    def __call__(self, _config):
        raise ConfigurationError("no credentials here")


def test_a_plugins_login_is_asked_for_a_token_before_a_client_is_made_so_that_its_reason_is_told():
    with pytest.raises(ConfigurationError, match="no credentials here"):
        new_client(AdminClient, {"bootstrap.servers": "localhost:9", "oauth_cb": FailingTokens()})
