"""Whose a connection of this machine is, as Linux's table of connections has it."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from game_events.config.local_addresses import LOOPBACK

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: Columns of a line: this end, the other end, the user's id, the socket's number.
_OURS, _THEIRS, _USER, _SOCKET = 1, 2, 7, 9
#: Id that no user has: a connection whose process has closed it already is nobody's.
NO_USER = -1


def connection_owner(end: tuple[str, int], other: tuple[str, int]) -> int:
    """Id of the user whose end of a connection within this machine is `end`, and goes to `other`; both are (address, port).

    `NO_USER`: the connection is not in the table, its process has let go of it, or there is no such table (`owners_are_known`).
    """
    wanted = {(_hex(end, v6), _hex(other, v6)) for v6 in (False, True)}
    for table in TABLES:
        with suppress(OSError):
            lines = table.read_text().splitlines()[1:]
            for line in lines:
                parts = line.split()
                if (parts[_OURS], parts[_THEIRS]) in wanted:
                    return int(parts[_USER]) if parts[_SOCKET] != "0" else NO_USER
    return NO_USER


@lru_cache
def owners_are_known() -> bool:
    """Whether this system says whose a connection is: one of this process's own is looked up."""
    with socket.create_server((LOOPBACK, 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        return connection_owner(client.getsockname(), listener.getsockname()) == os.geteuid()


def _hex(end: tuple[str, int], v6: bool) -> str:
    """An end as the table writes it: words of 32 bits in the machine's own order."""
    address = ipaddress.ip_address(end[0])
    if v6 and address.version == 4:
        address = ipaddress.ip_address(f"::ffff:{address}")
    packed = address.packed
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    text = "".join((word[::-1] if sys.byteorder == "little" else word).hex() for word in words)
    return f"{text.upper()}:{end[1]:04X}"
