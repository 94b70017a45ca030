"""The real registry behind tokens and certificates: schemas come, refusals say who refused what, and bounds hold."""

from __future__ import annotations

import time

import pytest

from game_events.errors import ConfigurationError, TransientError
from game_events.pipeline.runs.preflight import environment_checks, run_checks
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.servers.secured_broker import KEY_PASSWORD, make_certificates
from game_events_tests.support.servers.token_server import CLIENT, SCOPE, SECRET, token_server
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import framed

#: Seconds that a token is valid; the registry's client gets the next one when a fifth of them is left.
LIFE_S = 4
WRONG = "wr0ng-one"


@pytest.fixture
def tokens():
    with token_server() as server:
        yield server


@pytest.fixture
def login(tokens):
    """Settings of a client of the token server."""
    names = {"token_url": tokens.url, "client_id": CLIENT, "client_secret": SECRET, "scope": SCOPE}
    return {f"schema_registry_{name}": value for name, value in names.items()}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def subject(make_settings):
    """A registered schema's subject."""
    settings = make_settings()
    framed(settings, [Event("uno")])
    return f"{settings.kafka_topic}-value"


@pytest.fixture
def guarded(make_settings, tokens):
    """The registry, which takes only this server's tokens that have not ended."""
    with registry_proxy(make_settings().schema_registry_url) as proxy:
        proxy.takes = tokens.is_valid
        yield proxy


def test_tokens_of_a_client_are_used_until_they_end_and_then_new_ones(make_settings, guarded, tokens, login, subject):
    tokens.lifetime_s = LIFE_S
    registry = SchemaRegistry(make_settings(schema_registry_url=guarded.url, **login))
    asked = 0

    def ask():
        nonlocal asked
        assert registry.version_numbers(subject) == [1]
        asked += 1
        return len(tokens.given) >= 3

    until(ask, what="the third token")
    assert tokens.scopes == {SCOPE}
    assert len(tokens.given) < asked


def test_a_token_without_an_end_is_used_several_times(make_settings, guarded, tokens, login, subject):
    tokens.says_end = False
    registry = SchemaRegistry(make_settings(schema_registry_url=guarded.url, **login))
    assert [registry.version_numbers(subject) for _ in range(3)] == [[1]] * 3
    assert len(tokens.given) == 1


def test_a_fixed_token_is_sent_and_one_that_has_ended_is_told_from_a_wrong_password(
    make_settings, guarded, tokens, login, subject
):
    SchemaRegistry(make_settings(schema_registry_url=guarded.url, **login)).version_numbers(subject)
    (token,) = tokens.given
    fixed = make_settings(schema_registry_url=guarded.url, schema_registry_token=token)
    assert SchemaRegistry(fixed).version_numbers(subject) == [1]
    ended = make_settings(schema_registry_url=guarded.url, schema_registry_token=WRONG)
    with pytest.raises(ConfigurationError, match=r"refuses.*401.*GAME_EVENTS_SCHEMA_REGISTRY_TOKEN; it may have ended"):
        SchemaRegistry(ended).version_numbers(subject)


def test_each_refusing_step_is_named_quickly_and_doctor_says_it(make_settings, guarded, tokens, login, subject):
    def refused(**more):
        settings = make_settings(schema_registry_url=guarded.url, **login | more)
        begun = time.monotonic()
        with pytest.raises((ConfigurationError, TransientError)) as raised:
            SchemaRegistry(settings).version_numbers(subject)
        assert time.monotonic() - begun < 10
        (said,) = run_checks({"schema registry": environment_checks(settings)["schema registry"]}, settings)
        assert not said.ok
        assert WRONG not in str(raised.value) + said.detail
        return type(raised.value), said.detail

    kind, said = refused(schema_registry_client_secret=WRONG)
    assert kind is ConfigurationError
    assert f"the token server {tokens.url} refuses the client (OAuthError: invalid_client" in said
    kind, said = refused(**{"schema_registry_token_url": "http://localhost:9/token"})
    assert kind is TransientError
    assert "the token server http://localhost:9/token gives no token" in said
    tokens.answer = lambda: (500, b"oops")
    kind, said = refused()
    assert kind is TransientError
    assert "500" in said
    tokens.answer = lambda: None
    tokens.signs_wrong = True
    kind, said = refused()
    assert kind is ConfigurationError
    assert f"it does not take the token of {tokens.url}" in said


def test_a_token_server_is_bounded_in_seconds_and_bytes(make_settings, guarded, tokens, login, subject):
    settings = make_settings(schema_registry_url=guarded.url, **login)

    def slow():
        time.sleep(3)

    tokens.answer = slow
    begun = time.monotonic()
    with pytest.raises(TransientError, match="gives no token"):
        SchemaRegistry(settings, 0.5, retries=0).version_numbers(subject)
    assert time.monotonic() - begun < 3
    tokens.answer = lambda: (200, b" " * 2**26)
    with pytest.raises(TransientError, match=r"gives no token.*longer than 32 MiB"):
        SchemaRegistry(settings, retries=0).version_numbers(subject)


@pytest.mark.parametrize("key", ["plain.pem", "encrypted.pem", None])
def test_a_registry_that_wants_a_certificate_gets_it(make_settings, certificates, subject, key, tmp_path):
    certificate = certificates / "client.pem"
    if key is None:  # both in one file
        certificate = tmp_path / "both.pem"
        certificate.write_bytes((certificates / "plain.pem").read_bytes() + (certificates / "client.pem").read_bytes())
    with registry_proxy(
        make_settings().schema_registry_url, certificates / "broker.pem", certificates / "authority.pem"
    ) as proxy:
        settings = make_settings(
            schema_registry_url=proxy.url,
            tls_ca_file=certificates / "authority.pem",
            schema_registry_certificate_file=certificate,
            schema_registry_key_file=certificates / key if key else None,
            schema_registry_key_password=KEY_PASSWORD if key == "encrypted.pem" else None,
        )
        assert SchemaRegistry(settings).version_numbers(subject) == [1]


def test_a_certificate_that_is_missing_foreign_or_cannot_be_read_is_refused_with_the_settings_to_check(
    make_settings, certificates, subject
):
    with registry_proxy(
        make_settings().schema_registry_url, certificates / "broker.pem", certificates / "authority.pem"
    ) as proxy:

        def refused(said, **more):
            settings = make_settings(schema_registry_url=proxy.url, tls_ca_file=certificates / "authority.pem", **more)
            with pytest.raises(ConfigurationError, match=said) as raised:
                SchemaRegistry(settings).version_numbers(subject)
            assert WRONG not in str(raised.value)

        ours, files = {"schema_registry_certificate_file": certificates / "client.pem"}, "SCHEMA_REGISTRY_CERTIFICATE_FILE"
        refused(f"refuses this client's certificate, or that there is none.*{files}")
        foreign = _signed_by_a_stranger(certificates)
        refused(f"refuses this client's certificate.*{files}", schema_registry_certificate_file=foreign)
        encrypted = ours | {"schema_registry_key_file": certificates / "encrypted.pem"}
        refused(f"certificate cannot be used.*{files}", **encrypted)
        refused(f"certificate cannot be used.*{files}", **encrypted, schema_registry_key_password=WRONG)
        refused(f"certificate cannot be used.*{files}", **ours)  # no key in it


def _signed_by_a_stranger(certificates):
    """A certificate with its key that the registry's authority has not signed."""
    folder = certificates / "others"
    folder.mkdir()
    make_certificates(folder)
    file = folder / "both.pem"
    file.write_bytes((folder / "plain.pem").read_bytes() + (folder / "client.pem").read_bytes())
    return file


def test_a_run_reads_and_doctor_names_the_login(make_settings, guarded, login, subject, tokens):
    settings = make_settings(
        schema_registry_url=guarded.url, kafka_topic=subject.removesuffix("-value"), source="kafka", **login
    )
    (said,) = run_checks({"schema registry": environment_checks(settings)["schema registry"]}, settings)
    assert said.ok
    assert f"1 version; login of client {CLIENT}, tokens of {tokens.url}" in said.detail
    assert SECRET not in said.detail
