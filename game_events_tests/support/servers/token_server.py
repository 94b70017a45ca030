"""A real token server (OAuth 2 client credentials): short-lived signed tokens, and the keys that a broker checks them by."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

CLIENT, SECRET = "game-events-reader", "pl4nted-client-s3cret"
SCOPE, AUDIENCE = "events.read", "studio-kafka"
#: (status, body) instead of a token; None: a token, if the login is right.
Answer = tuple[int, bytes] | None


class TokenServer:
    """Attributes: `lifetime_s` of the tokens given next; `answer`, asked before each token; `given`, the tokens so far.

    `says_end`: whether answers say when a token ends.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.lifetime_s = 300
        self.says_end = True
        self.answer: Callable[[], Answer] = lambda: None
        self.given: list[str] = []
        self.asked = 0
        self.scopes: set[str] = set()
        self._key = RSAKey.generate_key(2048, {"kid": "tests", "alg": "RS256", "use": "sig"})
        self._foreign = RSAKey.generate_key(2048, {"kid": "tests", "alg": "RS256", "use": "sig"})
        #: Whether tokens are signed by a key that nobody knows, so that who checks them refuses.
        self.signs_wrong = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.base = f"{'https' if certificate else 'http'}://localhost:{self._server.server_port}"
        self.url = f"{self.base}/token"
        self.keys_url = f"{self.base}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take_keys_of(self, other: TokenServer) -> None:
        """Sign as another server does, so that who trusts that one trusts this one."""
        self._key, self.base = other._key, other.base

    def is_valid(self, token: str) -> bool:
        """Whether a token is one of this server's that has not expired."""
        try:
            claims = jwt.decode(token, self._key, algorithms=["RS256"]).claims
        except (ValueError, JoseError):
            return False
        return bool(claims["exp"] > time.time())

    def _token(self) -> str:
        now = time.time()
        claims = {"iss": self.base, "aud": AUDIENCE, "sub": CLIENT, "scope": SCOPE, "iat": int(now)}
        # Whole seconds, but not less than the client was told.
        claims["exp"] = math.ceil(now + self.lifetime_s)
        # No two tokens are equal.
        claims["jti"] = str(len(self.given))
        return jwt.encode({"alg": "RS256", "kid": "tests"}, claims, self._foreign if self.signs_wrong else self._key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(200, json.dumps({"keys": [server._key.as_dict(private=False)]}).encode())

            def do_POST(self) -> None:
                server.asked += 1
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                instead = server.answer()
                if instead is not None:
                    return self._say(*instead)
                if self._login(form) != (CLIENT, SECRET) or form.get("grant_type") != ["client_credentials"]:
                    return self._say(401, b'{"error": "invalid_client", "error_description": "wrong client secret"}')
                server.scopes.update(form.get("scope", []))
                token = server._token()
                server.given.append(token)
                said: dict[str, object] = {"access_token": token, "token_type": "Bearer"}
                if server.says_end:
                    said["expires_in"] = server.lifetime_s
                return self._say(200, json.dumps(said).encode())

            def _login(self, form: dict[str, list[str]]) -> tuple[str, str]:
                """Of the header, each part of it encoded as a form's, or of the form."""
                given = self.headers["Authorization"]
                if given is None:
                    return form.get("client_id", [""])[0], form.get("client_secret", [""])[0]
                user, _, secret = base64.b64decode(given.removeprefix("Basic ")).decode().partition(":")
                return unquote(user), unquote(secret)

            def _say(self, status: int, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler


@contextlib.contextmanager
def token_server(certificate: Path | None = None) -> Iterator[TokenServer]:
    """A token server that ends with the block; `certificate`: PEM file of its key and chain, for https."""
    server = TokenServer(certificate)
    try:
        yield server
    finally:
        server.close()


@dataclass(frozen=True)
class TokensByHttp:
    """A login as a plug-in may bring it: it asks the token server itself, wherever it is."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __call__(self, _config: str) -> tuple[str, float]:
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        form = {"grant_type": "client_credentials"}
        said = httpx2.post(self.url, data=form, headers={"Authorization": f"Basic {login}"}, timeout=10).json()
        return said["access_token"], time.time() + said["expires_in"]
