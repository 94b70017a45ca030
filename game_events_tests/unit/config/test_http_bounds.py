"""No answer is waited for without end, whatever the other side sends in place of one."""

from __future__ import annotations

import ast
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.uuid import generate_new_uuid

import game_events
from game_events.config import network
from game_events.config.http_bounds import bounded
from game_events.config.network import within
from game_events.config.settings import Settings, load_settings
from game_events.errors import DataError, TransientError
from game_events.plugins.alerts import webhook as alerts
from game_events.plugins.catalog import openlineage_events as lineage
from game_events.plugins.catalog.catalogs.unity import UnityServer
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.up import _status
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.servers.endless_heads import KINDS, endless_heads
from game_events_tests.support.waiting import until

#: Modules that make HTTP calls, with what bounds them.
CLIENTS = {
    "schema_registry.py": "bounded",
    "plugins/alerts/webhook.py": "bounded",
    "plugins/local/up.py": "bounded",
    "plugins/catalog/openlineage_events.py": "within",
    "plugins/catalog/catalogs/unity.py": "bounded",
    "plugins/iceberg/rest.py": "timeout=float(",
    "plugins/local/servers/local_stack.py": "within",
    "plugins/local/producer/produce.py": "registry_client",
    "plugins/export/delivery.py": "ClientTimeout(total=",
    "config/http_bounds.py": "within",
}
#: Modules that only serve by these.
OTHERS = {"plugins/local/mock_api.py"}


def ask_registry(address):
    with pytest.raises(TransientError, match="gave no usable answer"):
        SchemaRegistry(Settings(schema_registry_url=f"http://{address}"), 0.4, retries=0).fetch(1)


def send_alert(address):
    alert = alerts.Alert(id="1", event="run_failed", summary="x")
    assert not alerts.send(load_settings(alert_webhook_url=f"http://{address}/x"), alert, 0.4)


def send_lineage(address):
    run, job = Run(runId=str(generate_new_uuid())), Job(namespace="n", name="j")
    event = RunEvent(eventTime="2026-01-01T00:00:00Z", producer="http://x", run=run, job=job, eventType=RunState.START)
    _, lost, _ = lineage.send(load_settings(openlineage_url=f"http://{address}"), [event], 0.4)
    assert lost == 1


def ask_ui(address):
    with pytest.raises(httpx2.ReadTimeout, match=r"not at its end after 0\.4 s"):
        _status(f"http://{address}/server_info", 0.4)


def ask_own_registry(address):
    assert not local_stack.registry_is_healthy(int(address.rpartition(":")[2]))


def ask_unity(address):
    with pytest.raises(TransientError, match="does not answer: ReadTimeout"):
        UnityServer(f"http://{address}", None, 0.4).ask("GET", "catalogs")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [ask_registry, send_alert, send_lineage, ask_ui, ask_own_registry, ask_unity])
def test_an_answer_whose_head_never_ends_is_given_up_in_time(ask, kind, monkeypatch):
    monkeypatch.setattr(local_stack, "HEALTH_TIMEOUT_S", 0.4)
    with endless_heads(kind) as served:
        began = time.monotonic()
        ask(served.address)
        # Three attempts of an alert, with what comes between them.
        assert time.monotonic() - began < 10
        assert served.asked


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_given_up_leaves_neither_a_thread_nor_a_connection(kind):
    with endless_heads(kind) as served:
        for _ in range(3):
            ask_registry(served.address)
            ask_ui(served.address)
        until(lambda: not served.open, what="the connections' end")
        until(lambda: not [t for t in threading.enumerate() if t.name == "http"], what="the threads' end")
        assert served.asked == 6


def test_alerts_take_no_more_than_their_time_in_all(monkeypatch):
    monkeypatch.setattr(alerts, "TOTAL_S", 1.0)
    with endless_heads("drip") as served:
        began = time.monotonic()
        alert = alerts.Alert(id="1", event="run_failed", summary="x")
        assert not alerts.send(load_settings(alert_webhook_url=f"http://{served.address}/x"), alert, 0.7)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_client_of_the_registry_or_the_webhook_goes_where_an_answer_leads(status):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - http.server's

        def log_message(self, *_):
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(TransientError, match=f"with {status}"):
            SchemaRegistry(Settings(schema_registry_url=url), retries=0).fetch(1)
        assert alerts.send(load_settings(alert_webhook_url=f"{url}/x"), alerts.Alert(id="1", event="run_failed", summary="x"))
        server.shutdown()
    assert len(asked) == 2
    assert not [path for path in asked if "elsewhere" in path]


def test_calls_that_do_not_end_are_not_more_than_a_few(monkeypatch):
    """Such as those that wait for a name server: nothing can end them."""
    monkeypatch.setattr(network, "_unfinished", [])
    ended = threading.Event()
    for _ in range(network.MOST_UNFINISHED):
        with pytest.raises(TimeoutError):
            within(0.001, ended.wait, "stuck")
    with pytest.raises(TimeoutError, match="16 earlier calls have not ended yet"):
        within(1, lambda: pytest.fail("it was begun"), "stuck")
    ended.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "stuck"], what="the threads' end")
    assert within(1, lambda: 1, "next") == 1


def test_an_error_of_the_call_is_the_callers_and_its_own_time_out_too():
    def own_time_out():
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        within(5, own_time_out, "x")
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0, "x")


def test_a_long_answer_is_an_error_and_a_short_one_is_whole():
    def answer(request):
        return httpx2.Response(200, content=iter([b"x" * int(request.url.path[1:])]))

    with bounded(httpx2.Client(transport=httpx2.MockTransport(answer)), 5, 1_000) as client:
        assert len(client.get("http://x/1000").content) == 1_000
        with pytest.raises(DataError, match="longer than"):
            client.get("http://x/1001")


def test_every_module_that_makes_http_calls_bounds_them():
    """A new one is listed here with its bound."""
    root, found = Path(game_events.__file__).parent, set[str]()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {"httpx2", "requests", "aiohttp", "http.client", "urllib3"} & set(names):
                found.add(path.relative_to(root).as_posix())
        assert "urlopen" not in path.read_text(), path
    assert found - OTHERS == CLIENTS.keys()
    for name, bound in CLIENTS.items():
        assert bound in (root / name).read_text(), name
