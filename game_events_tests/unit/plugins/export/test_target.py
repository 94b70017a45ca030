"""Where rows go: settings that contradict each other, credentials that are shown nowhere."""

from __future__ import annotations

import pickle
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.export.delivery import ExportTarget, preflight
from game_events_tests.support.servers.rest_receiver import receiving

TOKEN, PASSWORD = "planted-token-51c2", "hunter22"
URL = f"http://127.0.0.1:1/hook/{TOKEN}"

UNUSABLE = (
    f"http://[::1/{TOKEN}",
    f"http:///{TOKEN}",
    f"http://a..b/{TOKEN}",
    f"https://{'a' * 70}.com/",
    f"http://h:99999/{TOKEN}",
)


def target(**settings):
    return ExportTarget.of(load_settings(**({"rest_url": URL} | settings)))


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"rest_bearer_token": TOKEN}, ("Authorization", f"Bearer {TOKEN}")),
        ({"rest_user": "ann", "rest_password": "secret"}, ("Authorization", "Basic YW5uOnNlY3JldA==")),
        ({"rest_api_key": TOKEN}, ("X-API-Key", TOKEN)),
        ({"rest_api_key": TOKEN, "rest_api_key_header": "Key"}, ("Key", TOKEN)),
        ({}, ("Content-Type", "application/json")),
    ],
)
def test_each_way_to_log_in_is_its_header(settings, header):
    assert dict([header]).items() <= target(**settings).headers.items()


def test_neither_address_nor_credentials_are_shown_and_they_survive_the_way_to_the_workers():
    found = target(rest_user="ann", rest_password=PASSWORD)
    assert TOKEN not in repr(found)
    assert PASSWORD not in repr(found)
    assert found.shown == "http://127.0.0.1:1"
    assert found.masked(f"no {URL} for {PASSWORD} YW5uOmh1bnRlcjIy") == "no *** for *** ***"
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rest_url": None}, "GAME_EVENTS_REST_URL"),
        ({"rest_url": "http://ann:pw@host/"}, "GAME_EVENTS_REST_PASSWORD"),
        ({"rest_bearer_token": "a", "rest_api_key": "b"}, "both set"),
        ({"rest_user": "ann"}, "or neither"),
        ({"rest_body": "object"}, "GAME_EVENTS_REST_ROWS_PER_CALL=1"),
        ({"rest_bearer_token": f"{TOKEN}\n"}, "GAME_EVENTS_REST_BEARER_TOKEN has a line break"),
        ({"rest_api_key": f"{TOKEN}\r\nHost: x"}, "GAME_EVENTS_REST_API_KEY has a line break"),
        *(({"rest_url": url}, "GAME_EVENTS_REST_URL.* no address that can be called") for url in UNUSABLE),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        target(**settings)
    assert TOKEN not in str(refused.value)


def test_an_answer_that_repeats_the_secret_path_or_query_of_the_address_is_masked():
    secret = target(rest_url=f"https://host/hook/{TOKEN}?code={PASSWORD}")
    assert secret.masked(f"Cannot POST /hook/{TOKEN}?code={PASSWORD}") == "Cannot POST ***"
    assert secret.masked(f"code {PASSWORD} is not known") == "code *** is not known"


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_without_certificates_is_refused_before_anything_is_called(tmp_path: Path, content):
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"GAME_EVENTS_TLS_CA_FILE.*ca.pem has no certificates"):
        target(tls_ca_file=tmp_path / "ca.pem")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_receiver_that_has_moved_gets_no_row(status):
    # Each chunk would be answered in the same way, and so have failed for good.
    class Moved(BaseHTTPRequestHandler):
        def do_OPTIONS(self):
            self.send_response(status)
            self.send_header("Location", "https://elsewhere.example.com/")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(ConfigurationError, match=f"HTTP {status}: look at GAME_EVENTS_REST_URL"):
            preflight(load_settings(rest_url=URL), target(rest_url=f"http://127.0.0.1:{server.server_port}/"))


def test_https_at_a_port_without_tls_is_not_called_a_certificate_that_is_not_trusted():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(TransientError, match="no TLS connection"):
            preflight(load_settings(rest_url=URL), target(rest_url=f"https://127.0.0.1:{server.server_port}/"))


def test_the_first_call_tells_a_closed_door_a_wrong_address_and_a_busy_server_apart(tmp_path: Path):
    settings = load_settings(rest_url=URL)
    with receiving(tmp_path / "log", authorization=("Authorization", f"Bearer {TOKEN}")) as receiver:
        with pytest.raises(ConfigurationError, match="does not let us in") as refused:
            preflight(settings, target(rest_url=receiver.url))
        assert str(receiver.port) in str(refused.value)
        preflight(settings, target(rest_url=receiver.url, rest_bearer_token=TOKEN))
        for call in ("HEAD", "GET /health", ""):
            preflight(load_settings(rest_url=URL, rest_preflight=call), target(rest_url=receiver.url, rest_bearer_token=TOKEN))
    with pytest.raises(Exception, match="not reachable") as away:
        preflight(settings, target(rest_url=receiver.url))
    assert type(away.value).__name__ == "TransientError"
    with pytest.raises(ConfigurationError, match="REST_PREFLIGHT"):
        load_settings(rest_preflight="POST")
