"""A receiver's answer fills no memory, however long it is and whatever it is packed with."""

from __future__ import annotations

import asyncio
import gzip
import socket
from contextlib import asynccontextmanager

import pytest

from game_events.config.settings import load_settings
from game_events.plugins.export.delivery import MAX_ANSWER_BYTES, Calls, ExportTarget, client
from game_events_tests.support.servers.rest_receiver import receiving

BOMB = gzip.compress(b"x" * 50_000_000)


@asynccontextmanager
async def answering(status, headers, body, sent):
    """A receiver that says the same to each call, for as long as somebody reads it; notes what it could send."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        lines = [f"HTTP/1.1 {status} X", *headers, "Content-Type: text/plain", "", ""]
        writer.write("\r\n".join(lines).encode())
        try:
            for part in body:
                writer.write(part)
                sent.append(len(part))
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rows"


def delivered(status, headers, body):
    """What became of a call, and the bytes that its receiver could send."""
    sent = []

    async def call():
        async with answering(status, headers, body, sent) as url:
            target = ExportTarget.of(load_settings(rest_url=url, rest_max_attempts=1))
            async with client(target) as session:
                return await Calls(target, session).deliver("k", b"[]")

    return asyncio.run(call()), sum(sent)


@pytest.mark.parametrize("status", [200, 500, 400])
def test_an_answer_that_goes_on_and_on_is_left_alone(status):
    chunks = (b"100000\r\n" + b"x" * 0x100000 + b"\r\n" for _ in range(2_000))
    outcome, sent = delivered(status, ["Transfer-Encoding: chunked"], chunks)
    assert outcome.taken == (status == 200)
    assert sent < 200 * MAX_ANSWER_BYTES


def test_a_packed_answer_is_not_unpacked():
    outcome, _ = delivered(500, ["Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"], [BOMB])
    assert outcome.status == 500
    assert "xxx" not in outcome.answer


@pytest.mark.parametrize(("body", "status"), [(b"no json", 400), (b"[1, 2]", 200), (b"[" + b"1," * 500 + b"1]", 413)])
def test_the_mock_api_says_what_it_does_not_take_and_keeps_no_more_of_a_body_than_it_says(body, status, tmp_path):
    small = receiving(tmp_path / "log", max_body_bytes=500)
    with small as receiver, socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as caller:
        for _ in range(2):  # the connection goes on
            caller.sendall(b"POST /rows HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert caller.recv(65536).startswith(b"HTTP/1.1 %d " % status)
