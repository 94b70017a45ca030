"""One login at the registry, complete, and its secrets hidden."""

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError

URL, SECRET = "https://login.example.com/token", "pl4nted"
CLIENT = {"schema_registry_token_url": URL, "schema_registry_client_id": "reader", "schema_registry_client_secret": SECRET}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schema_registry_user": "me", "schema_registry_token": SECRET}, "USER and SCHEMA_REGISTRY_TOKEN exclude each other"),
        (CLIENT | {"schema_registry_token": SECRET}, "SCHEMA_REGISTRY_TOKEN and SCHEMA_REGISTRY_TOKEN_URL exclude each other"),
        ({"schema_registry_token_url": URL}, "TOKEN_URL needs SCHEMA_REGISTRY_CLIENT_ID and SCHEMA_REGISTRY_CLIENT_SECRET"),
        ({"schema_registry_client_id": "reader"}, "CLIENT_ID needs SCHEMA_REGISTRY_TOKEN_URL and"),
        (CLIENT | {"schema_registry_token_url": "login.example.com"}, "must start with http"),
        (CLIENT | {"schema_registry_token_url": f"https://me:{SECRET}@login.example.com"}, "must hold no key or password"),
        (CLIENT | {"schema_registry_token_url": f"{URL}?key={SECRET}"}, "must hold no key or password"),
        ({"schema_registry_key_password": SECRET}, "need SCHEMA_REGISTRY_CERTIFICATE_FILE"),
        ({"schema_registry_certificate_file": "/nowhere.pem"}, "/nowhere.pem is not a file"),
    ],
)
def test_logins_that_exclude_each_other_or_are_incomplete_are_refused_without_their_secrets(given, said):
    with pytest.raises(ConfigurationError, match=said) as raised:
        load_settings(**given)
    assert SECRET not in str(raised.value)


def test_each_login_can_be_set_in_the_environment_and_in_the_file(monkeypatch, tmp_path):
    for name, value in CLIENT.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name.upper()}", value)
    settings = load_settings()
    assert settings.schema_registry_client_secret.get_secret_value() == SECRET
    assert SECRET not in repr(settings)
    for name in CLIENT:
        monkeypatch.delenv(f"GAME_EVENTS_{name.upper()}")
    (tmp_path / "game_events.yaml").write_text(f"kafka: {{schema_registry_token: {SECRET}}}\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings().schema_registry_token.get_secret_value() == SECRET
