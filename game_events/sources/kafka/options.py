"""Options of Kafka's client, librdkafka, which driver and workers use alike; which of them a user may not set.

Source: librdkafka, CONFIGURATION.md.
"""

from collections.abc import Mapping
from pathlib import Path

from game_events.errors import ConfigurationError

_WHERE = "GAME_EVENTS_KAFKA_OPTIONS"
#: Set by this project; a user's own value would break exactly-once.
MANAGED = (
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "group.id",
)
#: Options that can turn off the verification of the broker, with the values that do not.
VERIFICATION = {
    "enable.ssl.certificate.verification": ("true",),
    "ssl.endpoint.identification.algorithm": ("https",),
}
#: SASL mechanisms with a user and a password.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: Begin of a name of Kafka's Java client -> what librdkafka has for it.
OF_JAVA = {
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "sasl.login.": "set sasl.username and sasl.password",
    "ssl.truststore.": "set ssl.ca.location, or ssl.ca.pem, to the authority's certificate in PEM",
    "ssl.keystore.type": "set ssl.keystore.location (PKCS #12), or ssl.certificate.location and ssl.key.location (PEM)",
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem",
    "ssl.keystore.key": "set ssl.key.pem",
    "fetch.max.wait.ms": "set fetch.wait.max.ms",
    "max.poll.records": "leave it out",
}
#: PEM files whose content goes to the workers: they may be on other machines.
PEM_FILES = ("ssl.ca", "ssl.certificate", "ssl.key")


def refuse_managed(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for options that exactly-once depends on."""
    managed = sorted(set(MANAGED) & set(options))
    if managed:
        raise ConfigurationError(f"{_WHERE}: {', '.join(managed)} is managed by game_events")


def refuse_unusable(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for options with which no client could, or should, connect.

    These are names of Java's client; values that turn off the verification of the broker's certificate and name (man in the
    middle); and SASL without a mechanism, or with one that needs more than a user and a password.
    """
    for name in options:
        instead = next((instead for begin, instead in OF_JAVA.items() if name.startswith(begin)), None)
        if instead is not None:
            raise ConfigurationError(f"{_WHERE}: {name} is an option of Java's client, which is not used: {instead}")
    for name, verifying in VERIFICATION.items():
        if options.get(name, verifying[0]).strip().lower() not in verifying:
            raise ConfigurationError(
                f"{_WHERE}: {name} may only be {' or '.join(verifying)}: certificates are always verified. For"
                " an authority of your own, set ssl.ca.location; a broker's certificate needs the name that it is reached by"
            )
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism is None and not options.get("security.protocol", "").upper().startswith("SASL"):
        return
    if mechanism not in MECHANISMS:
        wrong = f"sasl.mechanism {mechanism!r} is not supported" if mechanism else "SASL needs sasl.mechanism"
        raise ConfigurationError(
            f"{_WHERE}: {wrong}: use one of {', '.join(MECHANISMS)} with sasl.username and sasl.password, "
            "or a client's certificate (docs/sources.md)"
        )


def with_file_contents(options: Mapping[str, object]) -> dict[str, object]:
    """The options with the contents of PEM files in place of their paths, for clients on other machines.

    A directory of authorities, and a PKCS #12 file, must be on each machine.

    Raises:
        ConfigurationError: a file cannot be read, or is no text.
    """
    found = dict(options)
    for name in PEM_FILES:
        path = Path(str(found.get(f"{name}.location", "")))
        if f"{name}.location" not in found or path.is_dir():
            continue
        del found[f"{name}.location"]
        try:
            found[f"{name}.pem"] = path.read_text()
        except OSError as error:
            raise ConfigurationError(f"{_WHERE}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{_WHERE}: {path} is no PEM file") from None
    return found
