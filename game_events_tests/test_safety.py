"""Safe by default: certificates are verified, servers are this machine's own, names lead nowhere, nothing foreign is executed."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pyspark.sql import SparkSession

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse, game_of_silver, gold_name, is_game, silver_name
from game_events.pipeline.alerts import Alert, send
from game_events.settings import load_settings
from game_events.sources.registry import SchemaRegistry
from game_events.stack.stack_state import StackState

ROOT = Path(__file__).parents[1]


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that nobody but itself has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


class _Answers(http.server.BaseHTTPRequestHandler):
    """A registry with one version, and a receiver of alerts."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"[1]")

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def https(certificate: tuple[Path, Path]) -> Iterator[str]:
    """A server behind that certificate."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] - clients that refuse it break off
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_registry_with_an_unknown_certificate_is_refused_by_name_of_the_setting_and_works_with_it(certificate):
    with https(certificate) as url:
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_TLS_CA_FILE"):
            SchemaRegistry(load_settings(schema_registry_url=url)).version_numbers("s")
        trusted = load_settings(schema_registry_url=url, tls_ca_file=certificate[0])
        assert SchemaRegistry(trusted).version_numbers("s") == [1]


def test_a_webhook_with_an_unknown_certificate_gets_no_alert_and_does_with_the_setting(certificate, caplog):
    alert = Alert(id="x", event="lag_high", summary="lag")
    with https(certificate) as url, caplog.at_level(logging.WARNING):
        assert not send(load_settings(alert_webhook_url=f"{url}/planted"), alert)
        assert "GAME_EVENTS_TLS_CA_FILE" in caplog.text
        assert "planted" not in caplog.text
        assert send(load_settings(alert_webhook_url=f"{url}/planted", tls_ca_file=certificate[0]), alert)


def test_a_file_of_authorities_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_TLS_CA_FILE"):
        load_settings(tls_ca_file=tmp_path / "none.pem")


def test_nothing_in_the_code_turns_verification_off():
    words = ("verify=False", "CERT_NONE", "check_hostname = False", "_create_unverified_context", "enable.ssl.certificate")
    found = [(p.name, w) for p in (ROOT / "game_events").rglob("*.py") for w in words if w in p.read_text()]
    assert found == []


# --- servers


def listening(process: psutil.Process) -> set[str]:
    """Addresses where a process, or a child of it, takes connections."""
    return {
        c.laddr.ip
        for p in [process, *process.children(recursive=True)]
        for c in p.net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    }


@pytest.mark.stack
def test_the_local_broker_and_registry_and_spark_listen_on_this_machine_only(stack: StackState, spark: SparkSession):
    assert spark.range(1).count() == 1
    started = [psutil.Process(server.pid) for server in (stack.kafka, stack.registry) if server is not None]
    assert len(started) == 2
    for process in [*started, psutil.Process()]:
        found = listening(process)
        assert found, process.name()
        assert {ip for ip in found if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback} == set()


# --- names

HOSTILE = [
    "../../etc",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "nul\0",
    "%2e%2e",
    "%2Fetc",
    "unified",
    "Rummy",
    "ruммy",
    "🎲",
    "x" * 300,
    "x" * 64,
    "-rf",
    "_x",
    "a b",
    "a\n",
    "rummy\n",
    "a;drop table",
    "$(id)",
    "<script>",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_no_game(name):
    assert not is_game(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_in_the_allow_list_is_refused_or_leads_nowhere(name, tmp_path):
    try:
        settings = load_settings(games=(name,), lakehouse=str(tmp_path))
    except ConfigurationError:
        return
    assert not any(is_game(game) for game in settings.games)


def test_every_name_that_is_a_game_stays_one_folder_below_the_root(tmp_path):
    lakehouse = Lakehouse(str(tmp_path))
    for game in ("rummy", "a", "0", "x" * 63, "a_b"):
        for table in (silver_name(game), gold_name(game)):
            assert Path(lakehouse.table(table).uri).parent == tmp_path
        assert game_of_silver(silver_name(game)) == game
