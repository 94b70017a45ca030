"""User id of a local TCP connection, from Linux's connection tables."""

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from game_events.config.local_addresses import LOOPBACK

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: Columns of a line: local address, remote address, user id, inode.
_LOCAL, _REMOTE, _USER, _SOCKET = 1, 2, 7, 9
#: Not an id of a user: the process has closed its connection.
NO_USER = -1


def connection_owner(end: tuple[str, int], other: tuple[str, int]) -> int:
    """Id of the user who owns `end` of a connection to `other`, both (address, port).

    `NO_USER`: no such connection, it is closed already, or there is no table (`owners_are_known`).
    """
    wanted = {(_hex(end, v6), _hex(other, v6)) for v6 in (False, True)}
    for table in TABLES:
        with suppress(OSError):
            lines = table.read_text().splitlines()[1:]
            for line in lines:
                parts = line.split()
                if (parts[_LOCAL], parts[_REMOTE]) in wanted:
                    return int(parts[_USER]) if parts[_SOCKET] != "0" else NO_USER
    return NO_USER


@lru_cache
def owners_are_known() -> bool:
    """Whether this system has such tables: tries a connection of this process."""
    with socket.create_server((LOOPBACK, 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        return connection_owner(client.getsockname(), listener.getsockname()) == os.geteuid()


def known_owner(end: tuple[str, int], other: tuple[str, int]) -> int | None:
    """As `connection_owner`; None where this system does not say it."""
    return connection_owner(end, other) if owners_are_known() else None


def _hex(end: tuple[str, int], v6: bool) -> str:
    """An address and port in the table's form: hexadecimal 32-bit words in native byte order."""
    address = ipaddress.ip_address(end[0])
    if v6 and address.version == 4:
        address = ipaddress.ip_address(f"::ffff:{address}")
    packed = address.packed
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    text = "".join((word[::-1] if sys.byteorder == "little" else word).hex() for word in words)
    return f"{text.upper()}:{end[1]:04X}"
