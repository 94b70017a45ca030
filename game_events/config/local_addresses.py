"""What is on this machine, told from an address: one rule for every listener and client."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from game_events.config.settings import Settings

LOOPBACK = "127.0.0.1"
#: How the address of a Unix socket begins.
UNIX_SOCKET = "unix:"


def is_loopback(host: str | None) -> bool:
    """Whether a name or an address is that of this machine, and no other machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def at_loopback(address: str) -> bool:
    """The same of the host in an address with a scheme; that of a Unix socket is here, too."""
    if address.startswith(UNIX_SOCKET):
        return True
    try:
        return is_loopback(urlsplit(address).hostname)
    except ValueError:
        return False


def workers_are_local(settings: Settings) -> bool:
    """Whether all of Spark's workers are on this machine, so that they reach a port of its loopback address."""
    if settings.spark_remote:
        return at_loopback(settings.spark_remote)
    return re.match(r"local($|\[|-cluster)", settings.spark_master) is not None or at_loopback(settings.spark_master)
