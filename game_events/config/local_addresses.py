"""Recognises addresses of this machine, for every listener and client."""

import ipaddress
import re
from urllib.parse import urlsplit

from game_events.config.settings import Settings

LOOPBACK = "127.0.0.1"
#: Prefix of the address of a Unix socket.
UNIX_SOCKET = "unix:"


def is_loopback(host: str | None) -> bool:
    """Whether a host is a loopback name or address."""
    if host is not None and host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def at_loopback(address: str) -> bool:
    """Whether a URL has a loopback host, or is a Unix socket."""
    if address.startswith(UNIX_SOCKET):
        return True
    try:
        return is_loopback(urlsplit(address).hostname)
    except ValueError:
        return False


def workers_are_local(settings: Settings) -> bool:
    """Whether all Spark workers are on this machine, so that they reach its loopback address."""
    if settings.spark_remote:
        return at_loopback(settings.spark_remote)
    return re.match(r"local($|\[|-cluster)", settings.spark_master) is not None or at_loopback(settings.spark_master)
