"""What leaves this machine in clear is said; what stays on it is nobody's business."""

from __future__ import annotations

import pytest

from game_events.config.settings import load_settings
from game_events.pipeline.runs.preflight import environment_checks
from game_events.sources.factory import unencrypted

TOKENS = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "http://login.example.com/token?key=planted-1",
}
REGISTRY_CLIENT = {"schema_registry_client_id": "me", "schema_registry_client_secret": "planted-1"}
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "planted-1"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SCHEMA_REGISTRY_URL", {"schema_registry_url": "https://a,http://registry.example.com/planted-1"}),
        ("OPENLINEAGE_URL", {"openlineage_url": "http://lineage.example.com/planted-1"}),
        ("ALERT_WEBHOOK_URL", {"alert_webhook_url": "http://hooks.example.com/planted-1"}),
        ("REST_URL", {"rest_url": "http://receiver.example.com/planted-1"}),
        ("KAFKA_OPTIONS", {"kafka_options": TOKENS}),
        ("SCHEMA_REGISTRY_TOKEN_URL", REGISTRY_CLIENT | {"schema_registry_token_url": "http://login.example.com/token"}),
        ("KAFKA_OPTIONS", {"kafka_options": LOGIN, "kafka_bootstrap_servers": "127.0.0.1:9092,broker.example.com:9092"}),
    ],
)
def test_a_secret_that_can_be_read_on_the_way_is_said_by_doctor_under_the_settings_name(name, settings):
    (said,) = unencrypted(load_settings(**settings))
    assert f"GAME_EVENTS_{name} " in said
    assert "planted" not in said
    assert environment_checks(load_settings(**settings))["encryption"]() == said


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "schema_registry_url": "http://[::1]:8081",
            "rest_url": "http://127.0.0.2/rows",
            "openlineage_url": "http://localhost:5000",
        },
        {"schema_registry_url": "https://registry.example.com", "alert_webhook_url": "https://hooks.example.com/x"},
        {"kafka_options": TOKENS | {"sasl.oauthbearer.token.endpoint.url": "http://localhost:1/token"}},
        REGISTRY_CLIENT | {"schema_registry_token_url": "https://login.example.com/token"},
        {"kafka_options": LOGIN, "kafka_bootstrap_servers": "localhost:9092, [::1]:9093,"},
        {"kafka_options": LOGIN | {"security.protocol": "SASL_SSL"}, "kafka_bootstrap_servers": "broker.example.com:9092"},
        {"kafka_options": LOGIN, "kafka_bootstrap_servers": "broker:9092", "source": "files", "files_path": "/x"},
    ],
)
def test_nothing_is_said_of_what_is_encrypted_or_stays_here(settings):
    assert unencrypted(load_settings(**settings)) == []
