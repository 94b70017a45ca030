"""Tokens for Amazon MSK, signed with credentials that no cloud knows: what they hold, and what is said of them."""

import base64
import logging
import pickle
import sys
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.plugins.msk.worker import MskTokens
from game_events.sources.factory import make_source
from game_events.sources.kafka.client import client_options
from game_events.sources.source import MicroBatch, Partition

KEY, SECRET, SESSION = "AKIAPL4NTED", "pl4nted-aws-secret", "pl4nted-aws-session"


@pytest.fixture(autouse=True)
def aws(monkeypatch, tmp_path):
    """Credentials in the environment, and none elsewhere."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)


def settings(**more):
    return load_settings(kafka_login="msk_iam", msk_region="eu-west-1", **more)


def signed(token):
    """Host and query of the address that a token is."""
    parts = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return parts.netloc, {name: value for name, (value,) in parse_qs(parts.query).items()}


def test_a_token_is_an_address_of_the_region_signed_for_a_quarter_of_an_hour():
    token, ends = MskTokens("eu-west-1")("")
    host, query = signed(token)
    assert host == "kafka.eu-west-1.amazonaws.com"
    assert query["Action"] == "kafka-cluster:Connect"
    key, day, *scope = query["X-Amz-Credential"].split("/")
    assert (key, scope) == (KEY, ["eu-west-1", "kafka-cluster", "aws4_request"])
    assert query["X-Amz-Date"].startswith(day)
    assert (query["X-Amz-Algorithm"], query["X-Amz-Expires"]) == ("AWS4-HMAC-SHA256", "900")
    assert query["X-Amz-Security-Token"] == SESSION
    assert len(query["X-Amz-Signature"]) == 64
    assert 880 < ends - time.time() <= 900
    assert SECRET not in token


def test_the_signature_is_of_the_secret_and_the_region(monkeypatch):
    def signature(region="eu-west-1"):
        return signed(MskTokens(region)("")[0])[1]["X-Amz-Signature"]

    first = signature()
    assert signature("us-east-1") != first
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert signature() != first


def test_driver_and_workers_get_the_login_without_a_secret_in_it():
    options = client_options(settings(), {})
    assert options.items() >= {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}.items()
    split = Partition("t", "id", 0)
    reading = make_source(settings()).reading(MicroBatch({split: 0}, {split: 3}))
    sent = pickle.dumps(reading)
    assert SECRET.encode() not in sent
    assert SESSION.encode() not in sent
    there = pickle.loads(sent)  # noqa: S301 - our own bytes
    assert there.options == reading.options  # so that a worker keeps its consumer
    token, _ = there.options["oauth_cb"]("")
    assert signed(token)[0] == "kafka.eu-west-1.amazonaws.com"


def test_it_is_not_logged_even_at_the_lowest_level(caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore.auth").setLevel(logging.DEBUG)
    token, _ = MskTokens("eu-west-1")("")
    _, query = signed(token)
    for secret in (SECRET, SESSION, token, query["X-Amz-Signature"]):
        assert secret not in caplog.text


def test_without_credentials_or_region_it_says_what_to_do_before_a_client_is_made(monkeypatch):
    with pytest.raises(ConfigurationError, match="msk_iam needs GAME_EVENTS_MSK_REGION"):
        client_options(load_settings(kafka_login="msk_iam"), {})
    monkeypatch.setenv("AWS_PROFILE", "typo")
    with pytest.raises(ConfigurationError, match=r"typo.*AWS_PROFILE"):
        make_source(settings(), 1).snapshot()
    monkeypatch.delenv("AWS_PROFILE")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=r"eu-west-1: there are no AWS credentials.*AWS_ACCESS_KEY_ID"):
        make_source(settings(), 1).snapshot()


def test_without_aws_s_library_it_says_which_package_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    monkeypatch.delitem(sys.modules, "game_events.plugins.msk.worker")
    with pytest.raises(
        ConfigurationError, match=r"plug-in msk needs .*aws_msk_iam_sasl_signer: pip install 'game-events\[msk\]'"
    ):
        client_options(settings(), {})
