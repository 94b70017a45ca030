"""The way to the shared Spark server: whoever else takes its port, or its address in IPv6, is sent nothing."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from game_events.jvm.private_folders import TemporaryFolder
from game_events.plugins.local.servers.connect_server import PrivateSocket
from game_events.plugins.local.servers.server_process import HOST, ServerProcess, find, free_ports, spawn, stop
from game_events.spark.connect import TOKEN_VARIABLE, channel_to
from game_events_tests.support.waiting import until

CALL = "/spark.connect.SparkConnectService/Config"
#: A server of the user's that says back what it is sent.
ECHO = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


class Seen(grpc.GenericRpcHandler):
    """Takes any call and notes its credentials."""

    def __init__(self):
        self.tokens = []

    def service(self, details):
        self.tokens.append(dict(details.invocation_metadata).get("authorization"))
        return grpc.unary_unary_rpc_method_handler(lambda *_: b"")


@contextmanager
def grpc_server(address):
    """A gRPC server that takes tokens without TLS, as Spark's does; yields its port and what it has seen."""
    seen = Seen()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(seen,), options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port(address)
    server.start()
    yield port, seen
    server.stop(None).wait()


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "hush")
    return "Bearer hush"


@pytest.fixture
def folder():
    made = TemporaryFolder.make()
    yield made
    for file in made.path.iterdir():
        if file.name != "in-use":
            file.unlink()
    made.release()


@pytest.fixture
def echo(tmp_path):
    (port,) = free_ports(1)
    server = spawn([sys.executable, "-c", ECHO, str(port)], port=port, cwd=tmp_path, log=tmp_path / "log")
    until(lambda: socket.socket().connect_ex((HOST, port)) == 0, 30, what="a server")
    yield server
    stop([server])


@contextmanager
def leading_to(folder, server, **options):
    found = PrivateSocket(folder.path / "here", lambda: server, **options)
    yield found
    found.close()


def asked(address, text=b"hello"):
    """What comes back through a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(address.removeprefix("unix:"))
        try:
            client.sendall(text)
            return client.recv(100)
        except ConnectionError:
            return b""


def call(channel):
    return channel.unary_unary(CALL)(b"", timeout=30)


def test_a_server_on_localhost_is_not_looked_for_on_ipv6_where_somebody_else_may_listen(token, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with grpc_server("127.0.0.1:0") as (port, ours), grpc_server(f"[::1]:{port}") as (same, theirs):
        assert same == port
        call(channel_to(f"sc://localhost:{port}").toChannel())
    assert (ours.tokens, theirs.tokens) == ([token], [])


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.1", "LOCALHOST"])
def test_a_server_is_looked_for_at_the_address_that_is_written_and_at_no_other_of_this_machine(host, token):
    """All of 127/8 is this machine, and each address is another listener's: 127.0.0.1 was asked whatever was written."""
    listened = host if host != "LOCALHOST" else "127.0.0.1"
    with grpc_server(f"{listened}:0") as (port, ours), ExitStack() as others:
        theirs = [
            others.enter_context(grpc_server(f"{other}:{port}"))[1]
            for other in ("127.0.0.1", "127.0.0.2", "[::1]")
            if other != listened
        ]
        call(channel_to(f"sc://{host}:{port}").toChannel())
    assert (ours.tokens, [seen.tokens for seen in theirs]) == ([token], [[], []])


def test_sparks_client_reaches_its_server_through_the_socket_with_its_token(token, folder):
    with grpc_server("127.0.0.1:0") as (port, ours):
        me = ServerProcess(pid=os.getpid(), create_time=psutil.Process().create_time(), port=port)
        with leading_to(folder, me) as way:
            call(channel_to(way.address).toChannel())
    assert ours.tokens == [token]


def test_much_comes_through_whole(folder, echo):
    sent = os.urandom(3_000_000)
    with leading_to(folder, echo) as way, socket.socket(socket.AF_UNIX) as client:
        client.connect(way.address.removeprefix("unix:"))
        client.settimeout(60)
        found = bytearray()
        for start in range(0, len(sent), 50_000):
            client.sendall(sent[start : start + 50_000])
            while len(found) < min(start + 50_000, len(sent)):
                found += client.recv(65536)
    assert bytes(found) == sent


def test_nobody_but_its_user_can_open_the_socket(folder, echo):
    with leading_to(folder, echo) as way:
        assert stat.S_IMODE(Path(way.address.removeprefix("unix:")).parent.stat().st_mode) == 0o700
        assert asked(way.address) == b"hello"


def test_whoever_takes_the_port_of_a_server_that_died_is_sent_nothing(folder, echo):
    alive = spawn(
        [sys.executable, "-c", "import time; time.sleep(600)"], port=echo.port, cwd=Path("/"), log=folder.path / "log"
    )
    os.kill(echo.pid, signal.SIGKILL)
    until(lambda: find(echo) is None, 30, what="its end")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((HOST, echo.port))
        thief.listen()
        # The server is gone, and one that lives and does not listen there.
        for server in (echo, alive):
            with leading_to(folder, server, accept_s=0.5) as way:
                assert asked(way.address) == b""
            connection, _ = thief.accept()
            connection.settimeout(30)
            assert connection.recv(100) == b""
            connection.close()
    stop([alive])


def test_who_comes_while_there_is_no_server_is_turned_away(folder):
    with leading_to(folder, None) as way:
        assert asked(way.address) == b""
