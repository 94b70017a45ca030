"""Kafka's logins are refused when the settings are read, with what to use; texts name a login without its secrets."""

import json

import pytest

from game_events.config.settings import load_settings
from game_events.config.sources.kafka_login import MECHANISMS, described, problem
from game_events.errors import ConfigurationError

SECRET = "pl4nted"
TOKENS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "reader",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": f"https://me:{SECRET}@login.example.com/token?key={SECRET}",
}


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "instead"),
    [
        ("GSSAPI", "Kerberos.*a client's certificate"),
        ("AWS_MSK_IAM", "set GAME_EVENTS_KAFKA_LOGIN=msk_iam"),
        ("plain", "Supported are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 .*OAUTHBEARER"),
        ("OAUTHBEARER", r"needs sasl\.oauthbearer\.method=oidc, with sasl\.oauthbearer\.client\.id"),
    ],
)
def test_a_mechanism_that_is_not_supported_is_refused_by_name_with_what_to_use(monkeypatch, name, mechanism, instead):
    monkeypatch.setenv("GAME_EVENTS_KAFKA_OPTIONS", json.dumps({name: mechanism, "sasl.password": SECRET}))
    with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_KAFKA_OPTIONS.*{mechanism}.*{instead}") as raised:
        load_settings()
    assert SECRET not in str(raised.value)


def test_the_settings_file_is_read_likewise(tmp_path, monkeypatch):
    (tmp_path / "game_events.yaml").write_text("kafka:\n  options: {sasl.mechanism: GSSAPI}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="'GSSAPI' is not supported"):
        load_settings()
    (tmp_path / "game_events.yaml").write_text("kafka: {login: msk_iam}\nmsk: {region: eu-west-1}\n")
    assert (load_settings().kafka_login, load_settings().msk_region) == ("msk_iam", "eu-west-1")


def test_a_login_without_a_mechanism_is_refused():
    assert "needs sasl.mechanism: one of PLAIN" in problem({"security.protocol": "sasl_ssl", "sasl.username": "reader"})


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_supported_is_taken(mechanism):
    options = TOKENS | {"sasl.mechanism": mechanism}
    assert load_settings(kafka_options=options).kafka_options.keys() == options.keys()
    assert problem({}) is None


def test_a_plugins_login_is_known_by_name_and_excludes_one_of_the_options():
    with pytest.raises(ConfigurationError, match=r"GAME_EVENTS_KAFKA_LOGIN.*must be one of options, msk_iam"):
        load_settings(kafka_login="msk")
    for options in ({"sasl.mechanism": "PLAIN", "sasl.password": SECRET}, {"security.protocol": "SSL"}):
        with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_KAFKA_LOGIN.*sets {next(iter(options))}.*leave these out"):
            load_settings(kafka_login="msk_iam", kafka_options=options)
    assert load_settings(kafka_login="msk_iam", kafka_options={"ssl.ca.location": "/ca.pem"}).kafka_login == "msk_iam"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, None),
        ({"ssl.ca.location": "/ca.pem"}, None),
        (TOKENS, "login OAUTHBEARER of client reader, tokens of https://login.example.com/token"),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": "AWS IAM"}, "login OAUTHBEARER, tokens of AWS IAM"),
        ({"sasl.mechanisms": "PLAIN", "sasl.username": "me", "sasl.password": SECRET}, "login PLAIN of user me"),
        ({"ssl.keystore.location": "/x.p12", "ssl.keystore.password": SECRET}, "login by a client's certificate"),
    ],
)
def test_a_login_is_described_without_its_secret(options, text):
    assert described(options) == text
