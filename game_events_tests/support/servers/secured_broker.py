"""A real broker that wants a login: SASL in the clear on one port, SASL over TLS (PEM) on another, a certificate on a third.

A broker of its own takes tokens (OAUTHBEARER), which it checks by the keys of a token server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from game_events.jvm import jars
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.server_process import HOST, Ports, free_ports, stop
from game_events_tests.support.servers.token_server import AUDIENCE, CLIENT, SCOPE, SECRET, TokenServer
from game_events_tests.support.waiting import until

USER, PASSWORD = "reader", 'pl4nted "secret\\word'
KEY_PASSWORD = "pl4nted-key-word"
#: How a client may bring its certificate and key.
CLIENTS = ("encrypted key in files", "encrypted key inline", "plain key in files", "pkcs12")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class SecuredBroker:
    """Where it listens, and the certificates of authorities: the one it has, and one that never signed anything.

    `client` is a folder with what a client needs that has to show a certificate.
    """

    clear: str
    sasl: str
    tls_port: int
    mutual_port: int
    authority: Path
    stranger: Path
    client: Path

    @property
    def tls(self) -> str:
        return f"localhost:{self.tls_port}"

    @property
    def mutual(self) -> str:
        return f"localhost:{self.mutual_port}"

    def forbid_group(self, group: str) -> None:
        """Let the login use this consumer group no more."""
        rule = AclBinding(
            ResourceType.GROUP,
            group,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        client = AdminClient({"bootstrap.servers": self.clear})  # without a name it would be gone before it has its answer
        client.create_acls([rule])[rule].result(30)

    def with_certificate(self, how: str, key_password: str = KEY_PASSWORD) -> dict[str, str]:
        """Options of a client that shows its certificate in one of the ways of `CLIENTS`."""
        certificate, key = self.client / "client.pem", self.client / ("plain.pem" if "plain" in how else "encrypted.pem")
        found = {"security.protocol": "SSL", "ssl.ca.location": str(self.authority)}
        if how == "pkcs12":
            return found | {"ssl.keystore.location": str(self.client / "client.p12"), "ssl.keystore.password": key_password}
        found["ssl.key.password"] = key_password
        if "inline" in how:
            del found["ssl.ca.location"]
            files = {"ssl.ca.pem": self.authority, "ssl.certificate.pem": certificate, "ssl.key.pem": key}
            return found | {name: file.read_text() for name, file in files.items()}
        return found | {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}

    def options(self, mechanism: str, *, tls: bool, secret: str = PASSWORD, authority: Path | None = None) -> dict[str, str]:
        found = {
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": secret,
        }
        return found | ({"ssl.ca.location": str(authority or self.authority)} if tls else {})


def _certificate(name: str, key, signer_name: str, signer, *, authority: bool) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(signer_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return built.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key, password: str | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """Files of the authority and of a stranger.

    Beside them the broker's key with its chain (valid for `localhost`, not for its number), and a client's certificate with its
    key in each form.
    """
    of_authority, of_stranger, of_broker, of_client = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    files = folder / "authority.pem", folder / "stranger.pem"
    for file, name, key in zip(files, ("authority", "stranger"), (of_authority, of_stranger), strict=True):
        file.write_bytes(_pem(_certificate(name, key, name, key, authority=True)))
    broker = _certificate("localhost", of_broker, "authority", of_authority, authority=False)
    (folder / "broker.pem").write_bytes(_key(of_broker) + _pem(broker))
    client = _certificate(USER, of_client, "authority", of_authority, authority=False)
    (folder / "client.pem").write_bytes(_pem(client))
    (folder / "plain.pem").write_bytes(_key(of_client))
    (folder / "encrypted.pem").write_bytes(_key(of_client, KEY_PASSWORD))
    encryption = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(USER.encode(), of_client, client, None, encryption)
    (folder / "client.p12").write_bytes(store)
    return files


def _secured(ports: Ports, sasl: int, tls: int, mutual: int, folder: Path) -> dict[str, str]:
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    # A properties file takes one level of backslashes away itself.
    login = f'{_PLAIN} required user_{USER}="{quoted}";'.replace("\\", "\\\\")
    listeners = {"SASL": (HOST, sasl), "TLS": ("localhost", tls), "MUTUAL": ("localhost", mutual)}
    found = local_stack.properties(ports)
    more = "".join(f",{name}://{host}:{port}" for name, (host, port) in listeners.items())
    found["listeners"] += more
    found["advertised.listeners"] += more
    found["listener.security.protocol.map"] += ",SASL:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL"
    found["inter.broker.listener.name"] = "PLAINTEXT"
    # Who comes without a login may do everything, and so may the others where nothing is said.
    found["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    found["super.users"] = "User:ANONYMOUS"
    found["allow.everyone.if.no.acl.found"] = "true"
    found["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
    for name in ("sasl", "tls"):
        found[f"listener.name.{name}.plain.sasl.jaas.config"] = login
        for mechanism in MECHANISMS[1:]:
            found[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = f"{_SCRAM} required;"
    for name in ("tls", "mutual"):
        found[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        found[f"listener.name.{name}.ssl.keystore.location"] = str(folder / "broker.pem")
    found["listener.name.mutual.ssl.client.auth"] = "required"
    found["listener.name.mutual.ssl.truststore.type"] = "PEM"
    found["listener.name.mutual.ssl.truststore.location"] = str(folder / "authority.pem")
    return found


@contextlib.contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """Runs it; the login exists in every mechanism."""
    authority, stranger = make_certificates(folder)
    kafka, controller, sasl, tls, mutual, registry = free_ports(6)
    ports = Ports(kafka=kafka, controller=controller, registry=registry)
    conf = _secured(ports, sasl, tls, mutual, folder)
    jars_of_kafka = jars.folder_of(jars.STACK) / "kafka"
    server = local_stack.start_kafka(jars_of_kafka, folder, ports=ports, log=folder / "kafka.log", conf=conf)
    try:
        until(lambda: local_stack.kafka_is_healthy(kafka), what="the secured broker")
        client = AdminClient({"bootstrap.servers": f"{HOST}:{kafka}"})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            login = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
            client.alter_user_scram_credentials([login])[USER].result(30)
        yield SecuredBroker(f"{HOST}:{kafka}", f"{HOST}:{sasl}", tls, mutual, authority, stranger, folder)
    finally:
        stop([server])


#: Milliseconds after which this broker asks a connection for a new login, at most; a token's end is earlier if it is sooner.
REAUTHENTICATION_MS = 600_000
_BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
#: System property of the broker's JVM: addresses that it may get keys from.
_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


@dataclass(frozen=True)
class TokenBroker:
    """Addresses without a login, and for a token."""

    clear: str
    sasl: str

    def options(self, tokens: TokenServer, secret: str = SECRET) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": tokens.url,
            "sasl.oauthbearer.scope": SCOPE,
        }


@contextlib.contextmanager
def token_broker(folder: Path, tokens: TokenServer) -> Iterator[TokenBroker]:
    """A broker that takes this server's tokens on one of its ports, and asks for a new one when a token ends."""
    kafka, controller, sasl, registry = free_ports(4)
    ports = Ports(kafka=kafka, controller=controller, registry=registry)
    conf = local_stack.properties(ports)
    more = f",SASL://{HOST}:{sasl}"
    conf["listeners"] += more
    conf["advertised.listeners"] += more
    conf["listener.security.protocol.map"] += ",SASL:SASL_PLAINTEXT"
    conf["inter.broker.listener.name"] = "PLAINTEXT"
    conf["sasl.enabled.mechanisms"] = "OAUTHBEARER"
    listener = "listener.name.sasl.oauthbearer"
    conf[f"{listener}.sasl.jaas.config"] = f"{_BEARER}LoginModule required;"
    conf[f"{listener}.sasl.server.callback.handler.class"] = f"{_BEARER}ValidatorCallbackHandler"
    conf[f"{listener}.connections.max.reauth.ms"] = str(REAUTHENTICATION_MS)
    conf["sasl.oauthbearer.jwks.endpoint.url"] = tokens.keys_url
    conf["sasl.oauthbearer.expected.audience"] = AUDIENCE
    with _environment(JDK_JAVA_OPTIONS=f"-D{_ALLOWED}={tokens.keys_url}"):
        jars_of_kafka = jars.folder_of(jars.STACK) / "kafka"
        server = local_stack.start_kafka(jars_of_kafka, folder, ports=ports, log=folder / "kafka.log", conf=conf)
    try:
        until(lambda: local_stack.kafka_is_healthy(kafka), what="the broker that takes tokens")
        yield TokenBroker(f"{HOST}:{kafka}", f"{HOST}:{sasl}")
    finally:
        stop([server])


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Variables of this process, and of those that it starts within the block."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
