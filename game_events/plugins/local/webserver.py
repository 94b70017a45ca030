"""Dagster's webserver behind a guard: ``python -m game_events.plugins.local.webserver``, with `dagster-webserver`'s options.

With `dev` before them it is `dagster dev` with this webserver: Dagster starts its own by the name of a module, and has no
setting for it. `game-events up` asks the UI under a foreign name before it shows its address: a Dagster that starts it in
another way is noticed at once.

Dagster's webserver has no login and does not check the origin of a request. Any page that a browser shows can send requests to
127.0.0.1, by an image, a form, a websocket, or under a name of its own that leads here (DNS rebinding); any user of the machine
can do it without a browser. Each of these requests is turned away before Dagster sees it:

* `Host` must be a name of this machine, or the one in `GAME_EVENTS_DAGSTER_URL`;
* `Origin`, which browsers send with everything that changes something and with websockets, must be the UI's own;
* GraphQL comes by POST and as JSON only, which no other page can send without being asked for leave first (CORS);
* a connection from this machine must be one of the user who started the UI, of root, or of a user in `GAME_EVENTS_UI_USERS`.
"""

import ipaddress
import logging
import os
import pwd
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.parse import urlsplit

from dagster_shared.ipc import open_ipc_subprocess
from dagster_webserver.cli import cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from game_events.config.network import LOOPBACK, is_loopback
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError

THIS_MODULE = "game_events.plugins.local.webserver"

#: First argument for `dagster dev`.
DEV = "dev"

#: What `dagster dev` starts its webserver with.
STARTS = "open_ipc_subprocess"

#: Types of a body that Dagster reads a query from; with any other it takes the one in the address.
_QUERY_TYPES = ("application/json", "application/graphql")
_USUAL_PORTS = {"http": 80, "https": 443}

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

#: Not an id of a user: the process has closed its connection.
NO_USER = -1


def connection_owner(end: tuple[str, int], other: tuple[str, int]) -> int:
    """Id of the user who owns `end` of a connection to `other`, both (address, port).

    `NO_USER`: no such connection, it is closed already, or there is no table (`owners_are_known`).
    """
    wanted = {(_hex(end, v6), _hex(other, v6)) for v6 in (False, True)}
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, _, _, _, _, user, _, socket_number, *_ = line.split()
                if (local, remote) in wanted:
                    return int(user) if socket_number != "0" else NO_USER
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
    packed = ipaddress.ip_address(end[0]).packed
    if v6 and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"


def guard() -> None:
    """Each application that Dagster makes in this process is behind the guard."""
    settings = load_settings()
    guarded = Middleware(UiGuard, address=settings.dagster_url, users=_ids(settings.ui_users))
    usual = DagsterWebserver.build_middleware

    def build_middleware(self: DagsterWebserver) -> list[Middleware]:  # type: ignore[type-arg]
        return [guarded, *usual(self)]

    DagsterWebserver.build_middleware = build_middleware  # type: ignore[method-assign]


def _ids(names: Iterable[str]) -> list[int]:
    try:
        return [pwd.getpwnam(name).pw_uid for name in names]
    except KeyError as error:
        raise ConfigurationError(f"GAME_EVENTS_UI_USERS: {error.args[0]}") from None


class UiGuard:
    """ASGI middleware before all of Dagster's."""

    def __init__(
        self,
        app: ASGIApp,
        address: str | None = None,
        users: Collection[int] = (),
        owner_of: Callable[[tuple[str, int], tuple[str, int]], int | None] = known_owner,
    ) -> None:
        """The guard of an application.

        `address`: the UI's besides this machine's own names (`dagster_url`); `users`: ids of users who may connect besides root
        and the one who runs this; `owner_of`: a connection's user id.
        """
        self._app = app
        self._origin = _origin(address) if address else None
        self._owner_of = owner_of
        self._users = {0, os.geteuid(), *users}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Turn a request away, or hand it on."""
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        else:
            status, why = refusal
            await PlainTextResponse(f"{why}\n", status)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 403, "the UI has another name: GAME_EVENTS_DAGSTER_URL says by which one it is reached"
        own = {_origin(f"http://{hosts[0]}"), _origin(f"https://{hosts[0]}"), self._origin} - {None}
        if any(_origin(origin) not in own for origin in headers.getlist("origin")) or _is_of_another_site(headers):
            return 403, "another page than the UI's own asked for this"
        if not self._may_connect(scope):
            return 403, "this UI is another user's: its owner may name users in GAME_EVENTS_UI_USERS"
        if scope["type"] == "http" and scope["path"].rstrip("/\n").endswith("/graphql") and not _is_plain_query(scope, headers):
            return 405, "queries come by POST, as application/json"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            named = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if is_loopback(named):
            return True
        return self._origin is not None and _origin(f"{urlsplit(self._origin).scheme}://{host}") == self._origin

    def _may_connect(self, scope: Scope) -> bool:
        """Requests of other machines do not arrive here by themselves: the UI listens on loopback."""
        client = scope.get("client")
        server = scope.get("server")
        if client is None or server is None or not is_loopback(client[0]):
            return True
        owner = self._owner_of(client, server)
        return owner is None or owner in self._users


def _origin(address: str) -> str | None:
    """Scheme, host and port as browsers say them: in lower case, without the scheme's usual port; None: it is no address."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{port}")


def _is_of_another_site(headers: Headers) -> bool:
    """Whether a browser says that another page asks, for more than to go to a page by a link: a picture, or a frame in it."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-dest") != "document"


def _is_plain_query(scope: Scope, headers: Headers) -> bool:
    """Whether Dagster takes the query from the body; its page for trying queries is the one thing that it gives by GET."""
    if scope["method"] in ("GET", "HEAD"):
        return "text/html" in headers.get("accept", "")
    return any(kind in headers.get("content-type", "") for kind in _QUERY_TYPES)


def develop() -> None:
    """`dagster dev`, which starts this module in place of Dagster's webserver."""
    from dagster._cli import dev  # noqa: PLC0415 - the webserver needs none of it

    setattr(dev, STARTS, _start_guarded)
    logging.getLogger("dagster").addFilter(is_news)
    dev.dev_command(prog_name="dagster dev")


def _start_guarded(parts: Sequence[str], **options: Any) -> Popen[Any]:  # noqa: ANN401 - subprocess's own
    guarded = [THIS_MODULE if part == "dagster_webserver" else part for part in parts]
    return open_ipc_subprocess(guarded, **options)


def is_news(record: logging.LogRecord) -> bool:
    """Whether a line of Dagster's says something: not that the `dagster.yaml` of this folder is not the instance's.

    It is what a new instance is made from (docs/dagster.md).
    """
    return not record.getMessage().startswith("Found a dagster instance configuration value")


if __name__ == "__main__":
    if sys.argv[1:2] == [DEV]:
        del sys.argv[1]
        develop()
    else:
        # Else a header of any local client's says where it comes from (uvicorn believes those from 127.0.0.1).
        os.environ["FORWARDED_ALLOW_IPS"] = ""
        guard()
        cli(auto_envvar_prefix="DAGSTER_WEBSERVER")
