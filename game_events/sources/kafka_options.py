"""One set of Kafka client options for two clients: librdkafka (offsets, producer) and Java's (Spark's source).

Users write librdkafka's names, which Confluent's documentation for Python uses; Java's own names are taken too where only
Spark needs them. Source: Confluent, "Kafka client configuration"; Apache Kafka, "Security", KIP-651 (PEM).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from game_events.errors import ConfigurationError

#: Set by this project for every client; a user's own value would break exactly-once.
MANAGED = ("isolation.level", "enable.auto.commit", "auto.offset.reset", "group.id")
#: Options that switch the check of the broker's certificate or name off, and the values that do not.
VERIFICATION = {
    "enable.ssl.certificate.verification": ("true",),
    "ssl.endpoint.identification.algorithm": ("https",),
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: Names that only one of the two clients has.
_JAVA_ONLY = re.compile(r"^(sasl\.jaas\.config|sasl\.login\..*|ssl\.(truststore|keystore)\..*|ssl\.key\.password)$")
_LIBRDKAFKA_ONLY = re.compile(r"^(sasl\.username|sasl\.password|ssl\.(ca|certificate|key)\.(location|pem)|sasl\.mechanisms)$")
_JAAS = re.compile(r'username="((?:[^"\\]|\\.)*)"\s+password="((?:[^"\\]|\\.)*)"')


def refuse_managed(options: Mapping[str, object]) -> None:
    """Check for options that exactly-once depends on.

    Raises:
        ConfigurationError: names them.
    """
    managed = sorted(set(MANAGED) & set(options))
    if managed:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {', '.join(managed)} is managed by game_events")


def refuse_unverified(options: Mapping[str, str]) -> None:
    """Check that the broker's certificate is verified, its name included: else whoever is on the way gets login and data.

    Raises:
        ConfigurationError: names the option.
    """
    for name, verifying in VERIFICATION.items():
        if options.get(name, verifying[0]).strip().lower() not in verifying:
            raise ConfigurationError(
                f"GAME_EVENTS_KAFKA_OPTIONS: {name} may only be {' or '.join(verifying)}: certificates are always verified. For"
                " an authority of your own, set ssl.ca.location; a broker's certificate needs the name that it is reached by"
            )


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """The options for Confluent's Python client; a Java login (`sasl.jaas.config`) becomes user and password.

    Raises:
        ConfigurationError: certificates would not be verified.
    """
    refuse_unverified(options)
    found = {key: value for key, value in options.items() if not _JAVA_ONLY.match(key)}
    login = login_of(options.get("sasl.jaas.config", ""))
    if login and "sasl.username" not in found:
        found["sasl.username"], found["sasl.password"] = login
    return found


def for_java(options: Mapping[str, str]) -> dict[str, str]:
    """The options for Java's client: user and password become a login module, PEM files become PEM stores.

    Raises:
        ConfigurationError: a mechanism that has no user and password, a file that cannot be read, or certificates would not be
            verified.
    """
    refuse_unverified(options)
    found = {key: value for key, value in options.items() if not _LIBRDKAFKA_ONLY.match(key)}
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism:
        found["sasl.mechanism"] = mechanism
    logs_in = options.get("security.protocol", "").upper().startswith("SASL")
    if logs_in and "sasl.username" in options and "sasl.jaas.config" not in options:
        module = _LOGIN_MODULES.get(mechanism or "")
        if module is None:
            raise ConfigurationError(
                f"GAME_EVENTS_KAFKA_OPTIONS: sasl.mechanism {mechanism!r} takes no sasl.username; use one of "
                f"{', '.join(_LOGIN_MODULES)}, or give sasl.jaas.config yourself"
            )
        user, password = _quoted(options["sasl.username"]), _quoted(options.get("sasl.password", ""))
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in options:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(options["ssl.ca.location"])}
    if "ssl.certificate.location" in options and "ssl.key.location" in options:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _pem(options["ssl.certificate.location"]),
            "ssl.keystore.key": _pem(options["ssl.key.location"]),
        }
    return found


def login_of(jaas: str) -> tuple[str, str] | None:
    """User and password of a Java login (`sasl.jaas.config`), if it has them."""
    found = _JAAS.search(jaas)
    if found is None:
        return None
    user, password = (re.sub(r"\\(.)", r"\1", part) for part in found.groups())
    return user, password


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pem(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {path} cannot be read: {error.strerror}") from None
