"""What all connections need: addresses of this machine, TLS, calls that may be given up.

Calls are made in daemon threads: a process that is interrupted or ends does not wait for them; a caller may wait for some time.
"""

import ipaddress
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

from game_events.config.pipeline_settings import Receiver, split_names
from game_events.config.settings import Settings, groups_of

LOOPBACK = "127.0.0.1"
#: Prefix of the address of a Unix socket.
UNIX_SOCKET = "unix:"
#: OpenSSL's text for a certificate that no known authority has signed.
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


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


def plain_http(settings: Settings) -> list[str]:
    """Messages about receivers on other machines whose connections can be read and changed on the way."""
    receivers = [Receiver("SCHEMA_REGISTRY_URL", settings.schema_registry_url, "schemas, and the registry's password")]
    for group in groups_of(type(settings)):
        receivers += group.receivers(settings)
    return [
        f"GAME_EVENTS_{receiver.setting} is http://: {receiver.what} can be read on the way; use https://"
        for receiver in receivers
        if any(a.startswith("http://") and not at_loopback(a) for a in split_names(receiver.address or ""))
    ]


T = TypeVar("T")
#: Calls that were given up and have not ended yet: connections that a name server or a handshake keeps. With so many, no
#: other one is begun.
MOST_UNFINISHED = 16
_unfinished: list[Future[Any]] = []
_changing = threading.Lock()


def begin_call(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call in a thread of that name; the future has its result or its error."""
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            made.set_exception(error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return made


def within(seconds: float, call: Callable[[], T], name: str) -> T:
    """The result of a call in a thread of that name.

    Raises:
        TimeoutError: it takes longer, and is left alone; or too many others that were left alone have not ended yet.
    """
    with _changing:
        _unfinished[:] = [earlier for earlier in _unfinished if not earlier.done()]
        if len(_unfinished) >= MOST_UNFINISHED:
            raise TimeoutError(f"{len(_unfinished)} earlier calls have not ended yet")
    made = begin_call(call, name)
    try:
        return made.result(seconds)
    except TimeoutError:
        if made.done():  # its own
            return made.result()
        with _changing:
            _unfinished.append(made)
        raise
