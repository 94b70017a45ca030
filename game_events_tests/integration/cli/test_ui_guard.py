"""Other web pages and other users of the machine start no job: Dagster's application behind the guard of `game-events up`."""

from __future__ import annotations

import functools
import http.client
import http.server
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from dagster import instance_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.webserver import DagsterWebserver
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from game_events.plugins.local import webserver
from game_events.plugins.local.servers.server_process import free_ports, listens
from game_events.plugins.local.webserver import NO_USER, UiGuard, connection_owner, known_owner
from game_events_tests.scenarios.orchestration.test_ui import CHROMIUM, FLAGS, LOAD_MS
from game_events_tests.support.waiting import until

OURS, EVIL = "127.0.0.1:3000", "evil.example"
MUTATION = {"query": "mutation { setNuxSeen }"}
QUERY = {"query": "{ __typename }"}
WEBSOCKET = ["graphql-ws"]


@pytest.fixture(scope="module")
def dagster():
    """Dagster's application as the launcher of `game-events up` makes it, reached through a proxy under another name, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DagsterWebserver, "build_middleware", DagsterWebserver.build_middleware)
        patch.setenv("GAME_EVENTS_DAGSTER_URL", "HTTPS://Dagster.Example.com:443/ui")
        webserver.guard()
        with instance_for_test() as instance, WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context:
            yield TestClient(DagsterWebserver(context).create_asgi_app(), base_url=f"http://{OURS}")


@pytest.mark.parametrize(
    "host", [EVIL, f"{EVIL}:3000", "127.0.0.1.evil.example", "evil.example:127.0.0.1", "[::1", "", "dagster.example.com:80"]
)
def test_a_name_that_leads_here_and_is_none_of_the_uis_gets_nothing(dagster, host):
    """DNS rebinding: the page may read what comes back, as it asks its own name."""
    for path in ("/graphql", "/server_info", "/runs", "/download_debug/x"):
        assert dagster.get(path, params=QUERY, headers={"Host": host, "Accept": "*/*"}).status_code == 403
    assert dagster.post("/graphql", json=QUERY, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", [f"http://{EVIL}", "null", "http://127.0.0.1:9999", "http://localhost:3000", f"http://{OURS}.evil"]
)
def test_another_page_changes_nothing(dagster, origin):
    assert dagster.post("/graphql", json=MUTATION, headers={"Origin": origin}).status_code == 403
    assert dagster.post("/report_asset_materialization/x", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("path", ["/graphql", "/graphql/", "//graphql", "/graphql%0a"])
def test_no_mutation_comes_by_get_or_as_what_a_page_may_send_without_leave(dagster, path):
    for accept in ("image/*", "*/*", "application/json"):
        assert "setNuxSeen" not in dagster.get(path, params=MUTATION, headers={"Accept": accept}).text
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert "setNuxSeen" not in dagster.post(path, params=MUTATION, headers={"Content-Type": kind}, content=b"").text
    assert dagster.get("/graphql", params=MUTATION, headers={"Accept": "image/*"}).status_code == 405


def test_a_page_in_a_frame_or_a_picture_of_it_is_not_given_to_other_pages_and_a_link_to_it_is(dagster):
    for site in ("cross-site", "same-site"):
        for kind in ("iframe", "image", "script", "empty"):
            assert dagster.get("/runs", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": kind}).status_code == 403
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": "text/html"}
        assert dagster.get("/server_info", headers=link).status_code == 200


def test_another_pages_websocket_is_not_accepted(dagster):
    for headers in ({"Host": OURS, "Origin": f"http://{EVIL}"}, {"Host": EVIL}):
        with pytest.raises(WebSocketDisconnect), dagster.websocket_connect("/graphql", WEBSOCKET, headers=headers):
            pass


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": f"http://{OURS}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"},
        {"Host": "localhost:3000", "Origin": "http://localhost:3000"},
        {"Host": "dagster.example.com", "Origin": "https://dagster.example.com"},
        # One that passes the name on as somebody wrote it, with the port that goes without saying.
        {"Host": "Dagster.Example.com", "Origin": "https://dagster.example.com"},
        {"Host": "dagster.example.com:443", "Origin": "https://dagster.example.com"},
        {"Host": "LOCALHOST:3000", "Origin": "http://localhost:3000"},
        {"Host": "localhost:80", "Origin": "http://localhost"},
        # A proxy that passes the port of this machine on.
        {"Host": OURS, "Origin": "https://dagster.example.com"},
    ],
)
def test_the_uis_own_pages_and_programs_of_the_user_work_under_each_of_its_names(dagster, headers):
    assert dagster.post("/graphql", json=MUTATION, headers=headers).json() == {"data": {"setNuxSeen": True}}
    assert dagster.post("/graphql", json=QUERY, headers=headers).json() == {"data": {"__typename": "Query"}}
    page = dagster.get("/graphql", params=MUTATION, headers={**headers, "Accept": "text/html"})
    assert (page.status_code, "setNuxSeen" in page.text) == (200, False)
    with dagster.websocket_connect("/graphql", WEBSOCKET, headers={"Host": OURS, **headers}) as ours:
        ours.send_json({"type": "connection_init"})
        assert ours.receive_json() == {"type": "connection_ack"}


# --- other users of the machine


@contextmanager
def connected():
    """Both ends of a connection within this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with server, client:
            yield client, server


def asked(client, users=(), owner=None):
    """The status that a connection's request is answered with."""
    sent = []

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message.get("status"))

    scope = {
        "type": "http",
        "path": "/",
        "method": "GET",
        "headers": [(b"host", OURS.encode())],
        "client": client[0],
        "server": client[1],
    }
    with suppress(StopIteration):
        UiGuard(app, None, users, lambda *_: owner)(scope, None, send).send(None)
    return sent[0]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's table")
def test_the_table_of_connections_says_whose_an_end_is_and_nobodys_once_it_is_let_go():
    with connected() as (client, server):
        ends = client.getsockname(), server.getsockname()
        assert connection_owner(*ends) == known_owner(*ends) == os.geteuid()
        client.close()
        # What Linux writes for it is root's number.
        assert connection_owner(*ends) == NO_USER


def test_another_user_of_the_machine_is_turned_away_unless_the_settings_name_him():
    ends = ("127.0.0.1", 40000), ("127.0.0.1", 3000)
    for owner, status in ((os.geteuid(), 200), (0, 200), (os.geteuid() + 4711, 403), (NO_USER, 403)):
        assert asked(ends, owner=owner) == status
        assert asked(ends, [os.geteuid() + 4711], owner) == (403 if owner == NO_USER else 200)
    assert asked((("192.0.2.1", 4), ("192.0.2.2", 3000)), owner=NO_USER) == 200, "from another machine: who lets it in decides"
    assert asked(ends, owner=None) == 200, "no table: it is not checked"


def test_a_user_who_is_none_is_said_before_anything_listens():
    environment = os.environ | {"GAME_EVENTS_UI_USERS": "no-such-user"}
    said = subprocess.run(
        [sys.executable, "-m", "game_events.plugins.local.webserver"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode != 0
    assert "GAME_EVENTS_UI_USERS" in said.stderr, json.dumps(said.stderr)


# --- the webserver as it is started, a real browser, another user

#: What a page can do to another address without asking anybody.
FOREIGN_PAGE = """
<img src="{ui}/graphql?query=mutation{{setNuxSeen}}"><iframe src="{ui}/runs"></iframe><iframe name="shown"></iframe>
<form target="shown" method="post" enctype="text/plain" action="{ui}/graphql?query=mutation{{setNuxSeen}}"></form>
<script>document.forms[0].submit();
fetch("{ui}/graphql", {{method: "POST", mode: "no-cors", body: '{{"query": "mutation {{setNuxSeen}}"}}'}});
new WebSocket("{ui}/graphql".replace("http", "ws"), "graphql-ws").onerror = () => document.title = "no websocket"</script>
"""


@pytest.fixture
def site(tmp_path):
    """The guarded webserver without any code, as a process; its address."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "game_events.plugins.local.webserver",
        "--empty-workspace",
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            command, env=os.environ | {"DAGSTER_HOME": str(tmp_path)}, cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        until(lambda: listens(port) or started.poll() is not None, 300, what="the webserver")
        assert started.poll() is None, (tmp_path / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(60)


@pytest.mark.scenario
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_is_turned_away_by_the_running_server(site):
    for user, status in ((os.geteuid(), 200), (pwd.getpwnam("nobody").pw_uid, 403)):
        child = os.fork()  # another user may not even read this Python
        if child == 0:
            os.setuid(user)
            client = http.client.HTTPConnection(site.removeprefix("http://"), timeout=60)
            client.request("GET", "/server_info", headers={"X-Forwarded-For": "203.0.113.7"})
            os._exit(client.getresponse().status // 100)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status // 100


@pytest.mark.scenario
@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is on the PATH")
def test_in_a_browser_the_uis_pages_work_and_another_page_gets_nothing(site, tmp_path):
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(FOREIGN_PAGE.format(ui=site))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "page"))
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page, answers = browser.new_page(), []
        page.on("response", lambda answer: answers.append((answer.request.method, answer.status, answer.url)))
        for address in (site, site.replace("127.0.0.1", "localhost")):
            page.goto(f"{address}/runs", timeout=LOAD_MS)
            page.get_by_text("Runs").first.wait_for(timeout=LOAD_MS)
        assert [answer for answer in answers if answer[1] in (403, 405)] == []
        answers.clear()
        page.goto(f"http://127.0.0.1:{other.server_port}/", timeout=LOAD_MS)
        page.wait_for_function("document.title == 'no websocket'", timeout=LOAD_MS)
        # Picture, frame, form and call.
        while len(refused := [status for _, status, url in answers if url.startswith(site)]) < 4:
            page.wait_for_timeout(100)
        assert refused == [403] * 4
        browser.close()
    other.shutdown()
    other.server_close()
