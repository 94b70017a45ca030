"""Safe by default: certificates are verified, servers are of this machine, names lead nowhere, nothing foreign is executed."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import logging
import re
import ssl
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from game_events.config.names import Names
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.group import commit_games
from game_events.lakehouse.system_tables import append_events, read_events
from game_events.lakehouse.tables import Lakehouse, game_of_silver, gold_name, is_game, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import selection_of
from game_events.pipeline.silver.admission import admit
from game_events.plugins.alerts.webhook import Alert, send
from game_events.plugins.catalog.report import page, report_data
from game_events.schema_registry import SchemaRegistry

ROOT = Path(__file__).parents[2]


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
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


class _Answers(http.server.BaseHTTPRequestHandler):
    """A registry with one version, and a receiver of alerts."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"[1]")

    def do_POST(self) -> None:
        self.do_GET()

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
    words = ("verify=False", "CERT_NONE", "check_hostname = False", "_create_unverified_context")
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


@pytest.mark.parametrize("name", [n for n in HOSTILE if n.strip()])
def test_no_command_or_asset_can_be_asked_for_a_hostile_name(name, tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), games=("rummy",))
    pipeline = Pipeline(settings, lambda: pytest.fail("names are looked up without Spark"))
    for asked in ({"games": [name]}, {"select": [f"silver_{name}_events"]}, {"full_refresh": [f"silver_{name}_events"]}):
        with pytest.raises(ConfigurationError):
            selection_of(pipeline, **asked)
    assert list(tmp_path.iterdir()) == []


def test_ten_thousand_fake_names_make_no_more_tables_than_there_is_room_for_and_a_real_game_still_comes_in():
    settings = load_settings(max_games=50, new_game_min_rows=1_000)
    flood = {f"fake_{n}": 9 for n in range(10_000)}
    admitted, refused = admit(settings, {f"known_{n}" for n in range(40)}, flood)
    assert (len(admitted), len(refused)) == (10, 9_990)
    known = {f"known_{n}" for n in range(40)} | admitted
    assert admit(settings, known, flood | {"real": 1_000})[0] == {"real"}


# --- what comes from outside

REGISTRY_SECRET = "planted-reg-2"
SCRIPT = '<script>alert("x")</script>'


def test_the_page_of_charts_escapes_whatever_stands_in_the_event_log(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "lakehouse"))
    now = datetime.datetime.now(datetime.UTC)
    hostile = {"time": now, "game": SCRIPT, "name": SCRIPT, "table": SCRIPT, "layer": "silver", "rows": 3, "seconds": 1.0}
    failed = {"status": "failed", "detail": json.dumps({"error": SCRIPT, "message": SCRIPT})}
    kinds = ("run", "layer", "table", "rejected", "unrouted", "rule", "check", "schema")
    append_events(lakehouse, [{**hostile, **failed, "kind": kind} for kind in kinds], SCRIPT, "1")
    text = page(report_data(read_events(lakehouse)), lakehouse.root, now, Names())
    assert "alert(" in text, "nothing of it is on the page: the test looks at nothing"
    assert SCRIPT not in text


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system ['touch made']", "!!python/name:os.system ''"])
def test_a_settings_file_cannot_run_code(tag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text(f"kafka_topic: {tag}\n")
    with pytest.raises(ConfigurationError, match=r"game_events\.yaml"):
        load_settings()
    assert not (tmp_path / "made").exists()


def test_no_code_reads_pickles_or_yaml_unsafely_and_the_linter_would_say_so():
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in rules["select"], "flake8-bandit: pickle, unsafe YAML, shells, eval"
    assert not {r for r in rules["ignore"] if r.startswith(("S1", "S3", "S5"))}
    silenced = re.compile(r"noqa:.*\b(S301|S302|S307|S102|S506|S501|S602)\b")
    assert [p.name for p in (ROOT / "game_events").rglob("*.py") if silenced.search(p.read_text())] == []


def test_secrets_may_be_files_of_a_folder_as_docker_and_kubernetes_mount_them(tmp_path, monkeypatch):
    (tmp_path / "game_events_schema_registry_password").write_text("planted\n")
    monkeypatch.setenv("GAME_EVENTS_SECRETS_DIR", str(tmp_path))
    found = load_settings().schema_registry_password
    assert found is not None
    assert found.get_secret_value() == "planted"
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD", "first")
    found = load_settings().schema_registry_password
    assert found is not None
    assert found.get_secret_value() == "first"
    monkeypatch.setenv("GAME_EVENTS_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_SECRETS_DIR"):
        load_settings()


def test_what_a_failure_says_holds_no_secret_wherever_it_comes_from(monkeypatch, caplog):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-aws-1")
    settings = load_settings(schema_registry_password=REGISTRY_SECRET, kafka_options={"sasl.password": "planted-kafka-3"})

    def breaks() -> None:
        raise OSError("planted-aws-1 planted-reg-2 planted-kafka-3 http://me:planted-4@host/x")

    with caplog.at_level(logging.DEBUG):
        outcome = commit_games({"rummy": breaks}, "game_committed", settings)
    assert "http://***@host/x" in outcome.failed["rummy"]
    assert "commit_failed" in caplog.text
    assert "planted" not in outcome.failed["rummy"] + caplog.text
