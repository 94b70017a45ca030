"""TLS: connections that the settings leave unencrypted, and how OpenSSL reports an untrusted certificate."""

from game_events.config.groups.values import split_names
from game_events.config.local_addresses import at_loopback, is_loopback
from game_events.config.masking import value_of
from game_events.config.settings import Settings

#: OpenSSL's text for a certificate that no known authority has signed.
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


def unencrypted(settings: Settings) -> list[str]:
    """Messages about connections to other machines that can be read and changed on the way."""
    addresses = {
        "SCHEMA_REGISTRY_URL": (settings.schema_registry_url, "schemas, and the registry's password"),
        "OPENLINEAGE_URL": (settings.openlineage_url, "lineage, and the token of its receiver"),
        "ALERT_WEBHOOK_URL": (value_of(settings.alert_webhook_url), "alerts, and the token in that address"),
        "REST_URL": (value_of(settings.rest_url), "rows, and what logs in to their receiver"),
    }
    found = [
        f"GAME_EVENTS_{name} is http://: {what} can be read on the way; use https://"
        for name, (address, what) in addresses.items()
        if any(one.startswith("http://") and not at_loopback(one) for one in split_names(address or ""))
    ]
    protocol = value_of(settings.kafka_options.get("security.protocol")) or ""
    brokers = [broker.rpartition(":")[0].strip("[]") for broker in split_names(settings.kafka_bootstrap_servers)]
    if protocol.upper() == "SASL_PLAINTEXT" and settings.source == "kafka" and not all(map(is_loopback, brokers)):
        found.append(
            "GAME_EVENTS_KAFKA_OPTIONS has security.protocol=SASL_PLAINTEXT: Kafka's login can be read on the way; use SASL_SSL"
        )
    return found
