"""A secret is masked in whatever form a library, a log or a traceback writes it."""

from __future__ import annotations

import base64
import json
import time
import traceback
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import dagster as dg
import pytest

from game_events.cli import main as command_line
from game_events.config import masking
from game_events.config.masking import MAX_SEARCHED, MAX_SEARCHED_SHORT, MAX_TEXT, forms_of, mask, mask_all, without_secrets
from game_events.config.settings import load_settings
from game_events.errors import GameEventsError
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import errors_decide
from game_events.orchestration.sensors import Sensor
from game_events.pipeline.runs.preflight import run_checks

REGISTRY, KAFKA, REST = 'p@ss/w"ord', "ka\"fka\\pw's", "tökén-1?"
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": KAFKA}
SETTINGS = {
    "schema_registry_user": "reader",
    "schema_registry_password": REGISTRY,
    "kafka_options": LOGIN,
    "rest_url": "https://receiver.example.com/x/rows?token=abcd1234",
    "rest_bearer_token": REST,
}
BEARER = "a-secret-of-24-characters"
PATTERNS = (masking._IN_ADDRESS, masking._TOKEN)
SECRETS = (REGISTRY, KAFKA, REST, "abcd1234")


@pytest.fixture
def settings():
    return load_settings(**SETTINGS)


def written(secret):
    """A secret as others write it."""
    return {
        "verbatim": f"x {secret} x",
        "json": json.dumps({"password": secret}),
        "json, letters kept": json.dumps({"password": secret}, ensure_ascii=False),
        "repr": repr({"password": secret}),
        "repr of bytes": repr({"password": secret.encode()}),
        "repr of json": repr(json.dumps({"password": secret})),
        "json of json": json.dumps(json.dumps(secret)),
        "in an address": f"https://host/?p={quote(secret, safe='')}",
        "in a form": f"p={quote_plus(secret)}",
        "base64": base64.b64encode(secret.encode()).decode(),
        "base64 for addresses": base64.urlsafe_b64encode(secret.encode()).decode(),
        "jaas": _jaas(secret),
    }


def _jaas(secret: str) -> str:
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    return f'x.PlainLoginModule required username="me" password="{escaped}";'


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", written("x"))
def test_no_form_of_a_secret_is_left(secret, form, settings):
    text = written(secret)[form]
    found = mask(text, settings)
    assert "***" in found
    assert not [known for known in forms_of(secret) if known in found]


@pytest.mark.parametrize(("user", "password"), [("reader", REGISTRY), ("me", KAFKA)])
def test_the_header_of_basic_authentication_is_masked(user, password, settings):
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    assert mask(f"Authorization: Basic {pair}", settings) == "Authorization: Basic ***"


def test_a_login_that_was_written_for_java_is_masked_without_it_too():
    settings = load_settings(
        kafka_options={"sasl.jaas.config": 'x.PlainLoginModule required username="me" password="pw\\"42-x";'}
    )
    assert mask('{"password": "pw\\"42-x"} pw"42-x', settings) == '{"password": "***"} ***'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pa/ss@host/x", "http://***@host/x"),
        ("jdbc:mysql://user:pa:s?s@host", "jdbc:mysql://***@host"),
        ("https://token@host", "https://***@host"),
        ("http://user:p@ss@host/x and http://u:@@h", "http://***@host/x and http://***@h"),
        ("http://user:pa/s@s@host/x, http://u:p@h/a@b", "http://***@host/x, http://***@h/a@b"),
        ("at http://host:8080/users/me@example.com", "at http://host:8080/users/me@example.com"),
        ("from http://host/x to a@b", "from http://host/x to a@b"),
        ("sc://host:443/;use_ssl=true;token=abc", "sc://host:443/;use_ssl=true;token=***"),
    ],
)
def test_logins_in_addresses_are_masked_whosever_they_are(text, shown):
    assert mask(text, None) == shown


HOSTILE = ("://a:", "://", "://:b", "://xxxx:", "://a:b@", "@", "://a/:", ";", "; ", ";" + " " * 1_000, "a", ":", "/://a:b:")


@pytest.mark.parametrize("unit", HOSTILE, ids=lambda unit: unit[:8])
def test_masking_a_hostile_text_takes_a_bounded_time_for_each_character(unit):
    text = (unit * 100_000)[:100_000]
    usual = "an error at http://host:8080/subjects of schema 7 " * 2_000
    for pattern in PATTERNS:
        ratios = []
        for _ in range(5):
            begun = time.process_time()
            pattern.sub("x", usual)
            between = time.process_time()
            pattern.sub("x", text)
            ratios.append((time.process_time() - between) / max(between - begun, 1e-4))
        # 4,000 times with patterns that try again.
        assert min(ratios) < 100, unit


def test_a_text_is_masked_where_there_is_no_secret_to_look_for():
    assert mask_all("at https://me:pw@host", ()) == "at https://***@host"


@pytest.mark.parametrize("shift", [*range(40), 2_000, 2_090, 2_110])
@pytest.mark.parametrize("secret", [BEARER, "https://me:pa/ss@w:rd@host", "https://me:" + "p" * 900 + "@host"])
def test_a_text_is_cut_where_no_part_of_a_secret_is_left(secret, shift, monkeypatch):
    settings = load_settings(rest_bearer_token=BEARER)
    monkeypatch.setattr(masking, "MAX_SEARCHED_SHORT", 500)
    # Masked secrets make the text shorter, so what is at the cut moves forward.
    text = f"{secret} " * 10 + "x" * shift + f" {secret}" * 400
    shown = without_secrets(text, settings)
    assert len(shown) <= MAX_TEXT + len(" ...")
    rest = shown.replace("https://***@host", "").replace("***", "").replace("x", "").replace(" ", "").replace(".", "")
    assert rest.replace("https://", "") == "", shown


def test_a_text_of_megabytes_is_cut_before_it_is_searched(settings, monkeypatch):
    searched = []
    monkeypatch.setattr(masking, "_IN_ADDRESS", SimpleNamespace(sub=lambda _, text: (searched.append(len(text)), text)[1]))
    shown = without_secrets("://a:" * 4_000_000, settings)
    assert (len(shown), searched) == (MAX_TEXT + len(" ..."), [MAX_SEARCHED_SHORT + 2_100])
    assert mask("x" * 10_000_000, settings) == "x" * MAX_SEARCHED + " ..."
    assert max(searched) < 2 * MAX_SEARCHED


@pytest.mark.parametrize(
    "name",
    [
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_MASTER_KEY",
        "AWS_SESSION_TOKEN",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
        "_SPARK_AUTH_SECRET",
    ],
)
def test_credentials_of_the_environment_are_masked(name, monkeypatch):
    monkeypatch.setenv(name, "planted-1")
    assert mask("said planted-1", None) == "said ***"


def test_the_key_in_a_file_is_masked(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert mask("key 0123456789abcdef", load_settings(erasure_key_file=tmp_path / "key")) == "key ***"


def test_switches_and_words_of_settings_are_no_secrets():
    settings = load_settings(
        spark_conf={"spark.security.credentials.hive.enabled": "true", "spark.ssl.keyStore": "/etc/keys"},
        kafka_options={"security.protocol": "SSL"},
        rest_url="https://host/rows",
    )
    for text in ("true", "/etc/keys", "SSL", "/rows"):
        assert mask(text, settings) == text


def test_secrets_of_logins_by_tokens_are_masked_also_as_headers_and_in_a_token_servers_address():
    settings = load_settings(
        kafka_options={
            "sasl.oauthbearer.client.id": "reader",
            "sasl.oauthbearer.client.secret": "pl4nted-1",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token?key=pl4nted-2",
            "sasl.oauthbearer.extensions": "pool=pl4nted-3",
            "sasl.oauthbearer.assertion.private.key.passphrase": "pl4nted-4",
        },
        **{
            "schema_registry_token_url": "https://login.example.com/token",
            "schema_registry_client_id": "reader",
            "schema_registry_client_secret": "pl4nted-5",
        },
    )
    headers = [base64.b64encode(f"reader:pl4nted-{n}".encode()).decode() for n in (1, 5)]
    secrets = ["pl4nted-1", "pl4nted-2", "pool=pl4nted-3", "pl4nted-4", "pl4nted-5", *headers]
    for secret in secrets:
        assert mask(f"said {secret}.", settings) == "said ***."
    assert mask("https://login.example.com/token", settings) == "https://login.example.com/token"
    assert mask("a token", load_settings(**{"schema_registry_token": "a token"})) == "***"


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.username": "game"},
        {"sasl.kerberos.service.name": "game", "sasl.kerberos.principal": "game", "sasl.kerberos.keytab": "game"},
        {"ssl.ca.location": "game", "ssl.key.location": "game", "ssl.truststore.location": "game", "ssl.keystore.type": "game"},
        {"sasl.oauthbearer.method": "game", "sasl.oauthbearer.client.id": "game", "sasl.oauthbearer.scope": "game"},
        {"sasl.oauthbearer.token.endpoint.url": "game", "sasl.oauthbearer.assertion.private.key.file": "game"},
        {"client.rack": "game", "client.dns.lookup": "game", "broker.address.family": "game", "debug": "game"},
        {"compression.type": "game", "compression.codec": "game", "partitioner": "game", "acks": "game"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_who_logs_in_and_how_is_no_secret_so_ordinary_words_stay_readable(options):
    """A user called `game` made `***` of the word in each log line, table name and column."""
    settings = load_settings(kafka_options=options, schema_registry_user="game", rest_user="game")
    assert mask("gold_game_player_agg of the game", settings) == "gold_game_player_agg of the game"


@pytest.mark.parametrize(
    "option",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.kerberos.kinit.cmd",
        "an.option.that.comes.with.a.later.version",
    ],
)
def test_every_other_option_of_kafkas_clients_is_a_secret_and_so_is_a_word_that_is_the_users_name_too(option):
    settings = load_settings(kafka_options={"sasl.username": "game", option: "game"})
    assert mask("the game", settings) == "the ***"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("repeated", ["://", "://a:", "x://y", ";token=", "; ", "http://user:pass@host ", "://@", "@"])
def test_a_long_text_is_masked_in_time_that_grows_as_the_text_does(repeated, settings):
    """Each start of an address is looked at to a bound: else these 200 kB take longer than the test may."""
    text = repeated * (200_000 // len(repeated))
    assert mask(text + KAFKA, settings).endswith("***")


# --- every error, whoever raises it


def raising():
    try:
        raise ValueError(f"Authorization: {REGISTRY}")
    except ValueError as error:
        raise KeyError(json.dumps(KAFKA)) from error


def clean(text):
    return not [form for secret in (REGISTRY, KAFKA) for form in forms_of(secret) if form in text]


def test_what_dagster_keeps_of_a_foreign_error_has_its_traceback_and_no_secret(settings):
    with pytest.raises(dg.Failure) as failed, errors_decide(SimpleNamespace(), settings):
        raising()
    kept = "".join(traceback.format_exception(failed.value)) + str(failed.value.metadata) + str(failed.value.description)
    assert clean(kept)
    assert "in raising" in str(failed.value.metadata["traceback"].value)
    assert "KeyError" in str(failed.value.description)


def test_a_foreign_error_without_a_secret_stays_what_it_is(settings):
    with pytest.raises(ZeroDivisionError), errors_decide(SimpleNamespace(), settings):
        raise ZeroDivisionError("x")


def test_what_a_sensor_says_or_raises_holds_no_secret(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD", REGISTRY)
    monkeypatch.setenv("GAME_EVENTS_KAFKA_OPTIONS", json.dumps(LOGIN))
    skips, fails = (
        Sensor("one", 30, tick, "Looks.").build(Graph.of())
        for tick in (lambda _: dg.SkipReason(f"GET failed: {REGISTRY}"), lambda _: raising())
    )
    assert skips(dg.build_sensor_context()) == dg.SkipReason("GET failed: ***")
    with pytest.raises(GameEventsError) as raised:
        fails(dg.build_sensor_context())
    assert clean("".join(traceback.format_exception(raised.value)))


def test_doctor_repeats_no_secret(settings):
    (found,) = run_checks({"x": raising}, settings)
    assert not found.ok
    assert clean(found.detail)


@pytest.mark.parametrize("error", [GameEventsError, RuntimeError])
def test_the_command_line_repeats_no_secret_whatever_went_wrong(error, monkeypatch, capfd):
    def fails(**_):
        raise error(f"said {json.dumps(REGISTRY)}")

    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD", REGISTRY)
    monkeypatch.setattr(command_line, "command_line", lambda: fails)
    monkeypatch.setattr("sys.argv", ["game-events", "tables", "--json"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    out, err = capfd.readouterr()
    assert ended.value.code == 1
    assert clean(out + err)
    assert "said" in err
    assert json.loads(out)["success"] is False
