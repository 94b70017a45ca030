"""Choice of the stack's ports on the loopback address."""

import random
import socket
from collections.abc import Mapping
from itertools import islice

from pydantic import BaseModel, ConfigDict

from game_events.errors import ConfigurationError

HOST = "127.0.0.1"
#: Linux takes ports from 32768 on for outgoing connections, other systems from 49152 on.
SERVER_PORTS = range(20000, 32768)


class Ports(BaseModel):
    """The three listeners of a stack: Kafka's for clients, its controller's, and the registry's."""

    model_config = ConfigDict(frozen=True)

    kafka: int
    controller: int
    registry: int


def choose_ports(given: Mapping[str, int | None], running: Mapping[str, int], last: Mapping[str, int]) -> Ports:
    """For each field of `Ports`: a running server's port, else the one given, else the last one if it is free, else any.

    Raises:
        ConfigurationError: a given port is busy, given twice, or not the one that the running server has.
    """
    chosen: dict[str, int] = {}
    for name, port in given.items():
        if port is not None:
            _check(name, port, running.get(name), chosen)
            chosen[name] = port
    chosen.update(running)
    for name in Ports.model_fields.keys() - chosen.keys():
        before = last.get(name)
        taken = chosen.values()
        if before is not None and before not in taken and is_free(before):
            chosen[name] = before
        else:
            chosen[name] = next(port for port in free_ports(len(chosen) + 1) if port not in taken)
    return Ports(**chosen)


def _check(name: str, port: int, running: int | None, chosen: Mapping[str, int]) -> None:
    if running is not None and port != running:
        raise ConfigurationError(
            f"{name} of this stack runs on port {running}, not {port}: run `game-events stack down` first, "
            "or leave the port out"
        )
    if port in chosen.values():
        raise ConfigurationError(f"port {port} is given twice: {name} needs one of its own")
    if running is None and not is_free(port):
        raise ConfigurationError(
            f"port {port} for {name} is busy or not allowed: stop what listens there, give another port, "
            "or none to take a free one"
        )


def is_free(port: int) -> bool:
    """Whether a server may listen on `port` of `HOST` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java's servers do: TIME_WAIT does not matter
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports, outside the range of outgoing connections, which could take them before the server does."""
    free = filter(is_free, random.sample(SERVER_PORTS, len(SERVER_PORTS)))
    return list(islice(free, count))


def listens(port: int) -> bool:
    """Whether something accepts connections on `port` of `HOST`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
