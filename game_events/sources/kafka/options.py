"""Kafka client options for two clients, librdkafka (offsets, producer) and Java's (Spark's source), from one set.

Users write librdkafka's names, which Confluent's documentation for Python uses; Java's own names are taken too where only
Spark needs them. Sources: librdkafka, CONFIGURATION.md; Apache Kafka, "Security", KIP-651 (PEM).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from game_events.config.masking import login_of
from game_events.errors import ConfigurationError

#: Set by this project for every client; a user's own value would break exactly-once.
MANAGED = ("isolation.level", "enable.auto.commit", "auto.offset.reset", "group.id")
#: Options that can turn off the verification of the broker, with the values that do not.
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
_JAVA_ONLY = re.compile(
    r"^(sasl\.jaas\.config|sasl\.login\..*|ssl\.(truststore|keystore)\..*|max\.poll\.records|fetch\.max\.wait\.ms)$"
)
_LIBRDKAFKA_ONLY = re.compile(r"^(sasl\.username|sasl\.password|ssl\.(ca|certificate|key)\.(location|pem)|sasl\.mechanisms)$")
#: The one form of a private key that Java's client always reads: of encrypted keys it reads only obsolete ciphers (Java 17:
#: "PBES2 SecretKeyFactory not available"), of OpenSSL's older forms none.
_PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"
#: A client's certificate and key in one PKCS #12 file: the same names in both clients, but Java's may also be of another type.
_PKCS12 = ("ssl.keystore.location", "ssl.keystore.password")
_PEM_KEY = {"ssl.key.location", "ssl.key.pem"}


def refuse_managed(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for options that exactly-once depends on."""
    managed = sorted(set(MANAGED) & set(options))
    if managed:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {', '.join(managed)} is managed by game_events")


def refuse_unverified(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless the broker's certificate and name are verified (man in the middle)."""
    for name, verifying in VERIFICATION.items():
        if options.get(name, verifying[0]).strip().lower() not in verifying:
            raise ConfigurationError(
                f"GAME_EVENTS_KAFKA_OPTIONS: {name} may only be {' or '.join(verifying)}: certificates are always verified. For"
                " an authority of your own, set ssl.ca.location; a broker's certificate needs the name that it is reached by"
            )


def refuse_unsupported(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a SASL mechanism with which one of the two clients could not log in."""
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism is None and not options.get("security.protocol", "").upper().startswith("SASL"):
        return
    if mechanism not in _LOGIN_MODULES:
        wrong = f"sasl.mechanism {mechanism!r} is not supported" if mechanism else "SASL needs sasl.mechanism"
        raise ConfigurationError(
            f"GAME_EVENTS_KAFKA_OPTIONS: {wrong}: use one of {', '.join(_LOGIN_MODULES)} with sasl.username and sasl.password, "
            "or a client's certificate (docs/sources.md)"
        )


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """The options for Confluent's Python client; a Java login becomes user and password.

    Raises:
        ConfigurationError: as `refuse_unverified` and `refuse_unsupported`.
    """
    refuse_unverified(options)
    refuse_unsupported(options)
    found = {key: value for key, value in options.items() if not _JAVA_ONLY.match(key)}
    if options.get("ssl.keystore.type", "PKCS12").upper() == "PKCS12" and not options.keys() & _PEM_KEY:
        found |= {key: options[key] for key in _PKCS12 if key in options}
    login = login_of(options.get("sasl.jaas.config", ""))
    if login and "sasl.username" not in found:
        found["sasl.username"], found["sasl.password"] = login
    return found


def for_java(options: Mapping[str, str]) -> dict[str, str]:
    """The options for Java's client: user and password become a login module; PEM, in files or inline, becomes PEM stores.

    Raises:
        ConfigurationError: as `refuse_unsupported`, a file that cannot be read, a client's certificate or key that Java's
            client could not use, or certificates would not be verified.
    """
    refuse_unverified(options)
    refuse_unsupported(options)
    found = {key: value for key, value in options.items() if not _LIBRDKAFKA_ONLY.match(key)}
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism:
        found["sasl.mechanism"] = mechanism
    logs_in = options.get("security.protocol", "").upper().startswith("SASL")
    if logs_in and mechanism and "sasl.username" in options and "sasl.jaas.config" not in options:
        module = _LOGIN_MODULES[mechanism]
        user, password = _quoted(options["sasl.username"]), _quoted(options.get("sasl.password", ""))
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    keystore = _keystore(options)
    if keystore:
        # Java's client refuses a password for an unencrypted key.
        found.pop("ssl.key.password", None)
    return found | _truststore(options) | keystore


def _truststore(options: Mapping[str, str]) -> dict[str, str]:
    """The broker's certificate authorities; a Java truststore takes precedence."""
    authorities = _pem(options, "ssl.ca")
    if authorities is None or any(name.startswith("ssl.truststore.") for name in options):
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}


def _keystore(options: Mapping[str, str]) -> dict[str, str]:
    """The client's certificate and key (mutual TLS); a Java keystore takes precedence."""
    certificate, key = _pem(options, "ssl.certificate"), _pem(options, "ssl.key")
    if (certificate is None and key is None) or any(name.startswith("ssl.keystore.") for name in options):
        return {}
    if certificate is None or key is None:
        raise ConfigurationError(
            "GAME_EVENTS_KAFKA_OPTIONS: a client's certificate needs its key, and the key its certificate: give both "
            "ssl.certificate.location and ssl.key.location (or ssl.certificate.pem and ssl.key.pem)"
        )
    key = key if _PLAIN_KEY in key else _plain_key(key, options.get("ssl.key.password"))
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}


def _plain_key(pem: str, password: str | None) -> str:
    """A private key of any form as unencrypted PKCS #8, which Java's client reads."""
    # The password of a key that is not encrypted is ignored, as librdkafka does.
    secret = password.encode() if password is not None and "ENCRYPTED" in pem else None
    try:
        key = serialization.load_pem_private_key(pem.encode(), secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # OpenSSL's error does not distinguish a wrong password from a damaged key.
        how = "cannot be read with ssl.key.password" if password else "is encrypted and there is no ssl.key.password"
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: the key of ssl.key.* {how}, or it is no PEM key") from None
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pem(options: Mapping[str, str], name: str) -> str | None:
    """Value of the option `{name}.pem`, else content of the file `{name}.location`; None: neither is set."""
    if f"{name}.pem" in options:
        return options[f"{name}.pem"]
    path = options.get(f"{name}.location")
    if path is None:
        return None
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {path} is no PEM file") from None
