"""Unity Catalog's open server, as far as the project uses it: what version 0.6.0 answers to the same calls.

It is a double: the server's packages are in no registry that tests reach. With `GAME_EVENTS_TEST_UNITY=http://host:port TOKEN`
the same tests ask a real one with `server.authorization=enable` (TOKEN: its `etc/conf/token.txt`), in catalogs of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import requests

from game_events_tests.support.servers.json_server import json_server

#: Address and token of a real server.
REAL = os.environ.get("GAME_EVENTS_TEST_UNITY")
TOKEN = "pl4nted-unity-t0ken"
PRIVILEGES = {"USE CATALOG", "USE SCHEMA", "SELECT", "MODIFY", "CREATE TABLE"}
#: Entries of a page, where nobody asks for another number.
PAGE = 2


class UnityServer:
    """Attributes: `url` and `token`; `catalog`, which is there and has nothing in it; of a double `asked`, calls so far.

    `refuse`: (method, path) -> (status, answer) of a double instead of its own.
    """

    def __init__(self, url: str, token: str, catalog: str) -> None:
        self.url, self.token, self.catalog = url, token, catalog
        self.asked: list[str] = []
        self.refuse: dict[tuple[str, str], tuple[int, Any]] = {}
        self._call("POST", "2.1/unity-catalog/catalogs", {"name": catalog})

    def add_user(self, name: str) -> None:
        user = {"displayName": name, "emails": [{"value": name, "primary": True}]}
        with contextlib.suppress(requests.HTTPError):  # it is there
            self._call("POST", "1.0/unity-control/scim2/Users", user)

    def grant(self, kind: str, name: str, principal: str, privilege: str) -> None:
        changes = [{"principal": principal, "add": [privilege], "remove": []}]
        self._call("PATCH", f"2.1/unity-catalog/permissions/{kind}/{name}", {"changes": changes})

    def privileges(self, kind: str, name: str) -> dict[str, set[str]]:
        """Principal -> privileges."""
        found = self._call("GET", f"2.1/unity-catalog/permissions/{kind}/{name}")["privilege_assignments"]
        return {one["principal"]: set(one["privileges"]) for one in found}

    def _call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, f"{self.url}/api/{path}", json=body, headers=headers, timeout=30)
        answer.raise_for_status()
        return answer.json()


@contextlib.contextmanager
def unity_server() -> Iterator[UnityServer]:
    """The double, which ends with the block; or the real one."""
    catalog = f"c{uuid.uuid4().hex[:8]}"
    if REAL:
        url, token = REAL.split()
        yield UnityServer(url, token, catalog)
        return
    double = _Double()
    with json_server(double.say) as url:
        server = UnityServer(url, TOKEN, catalog)
        server.asked, server.refuse = double.asked, double.refused
        yield server


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error_code": code, "message": message}


class _Double:
    """What the server knows: names -> entries, and users' privileges on them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._entries: dict[str, dict[str, Any]] = {}
        self._users = {"admin"}
        self._privileges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: (method, path) -> (status, answer) instead of its own.
        self.refused: dict[tuple[str, str], tuple[int, Any]] = {}

    def say(self, method: str, target: str, headers: Mapping[str, str], body: Any) -> tuple[int, Any]:
        """Status and answer of a call."""
        self.asked.append(f"{method} {target}")
        path = target.partition("?")[0].rpartition("/unity-catalog/")[2]
        if (method, path) in self.refused:
            return self.refused[method, path]
        try:
            if headers.get("Authorization") != f"Bearer {TOKEN}":
                raise _RefusedError(401, "UNAUTHENTICATED", "No authorization found.")
            return 200, self.answer(method, target, body)
        except _RefusedError as error:
            return error.status, error.body

    def answer(self, method: str, target: str, body: Any) -> dict[str, Any]:  # noqa: PLR0911 - a case for each call
        """The answer of a call; _RefusedError: another status."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = [unquote(part) for part in parts.path.removeprefix("/api/").split("/")]
        match method, *path:
            case "POST", "1.0", "unity-control", "scim2", "Users":
                self._users.add(body["emails"][0]["value"])
                return {}
            case "POST", "2.1", "unity-catalog", "temporary-table-credentials":
                (entry,) = [entry for entry in self._entries.values() if entry.get("table_id") == body["table_id"]]
                nobody = dict.fromkeys(
                    ("aws_temp_credentials", "azure_user_delegation_sas", "gcp_oauth_token", "expiration_time")
                )
                return {**nobody, "url": entry["storage_location"]}
            case "POST", "2.1", "unity-catalog", kind:
                return self._create(kind.removesuffix("s"), body)
            case "GET", "2.1", "unity-catalog", "tables":
                return self._tables(f"{query['catalog_name']}.{query['schema_name']}", query.get("page_token", ""))
            case "GET", "2.1", "unity-catalog", ("catalogs" | "schemas" | "tables") as kind, name:
                return self._found(kind.removesuffix("s"), name)
            case "GET", "2.1", "unity-catalog", "permissions", kind, name:
                self._found(kind, name)
                return self._assigned(self._privileges[name])
            case "PATCH", "2.1", "unity-catalog", "permissions", kind, name:
                self._found(kind, name)
                return self._changed(name, body["changes"])
        raise _RefusedError(404, "NOT_FOUND", "no such call")

    def _create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        parents = [body[key] for key in ("catalog_name", "schema_name") if key in body]
        if parents:
            self._found("schema" if len(parents) == 2 else "catalog", ".".join(parents))
        name = ".".join([*parents, body["name"]])
        if name in self._entries:
            raise _RefusedError(400, f"{kind.upper()}_ALREADY_EXISTS", f"{kind.title()} already exists: {name}")
        place = body.get("storage_location")
        if place is not None and not re.fullmatch(r"[a-z0-9]+://[!-~]*", place):
            raise _RefusedError(400, "INVALID_ARGUMENT", f"Unsupported path: {place}")
        for column in body.get("columns", []):
            assert json.loads(column["type_json"])["name"] == column["name"]
        made = {"owner": "admin", "created_at": 0, "created_by": "admin", "updated_at": 0, "updated_by": "admin"}
        identity = {f"{kind}_id": str(uuid.uuid4()), "full_name": name, "comment": None, "properties": {}}
        self._entries[name] = {"kind": kind, **identity, **made, **body}
        return self._entries[name]

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        entry = self._entries.get(name)
        if entry is None or entry["kind"] != kind:
            raise _RefusedError(404, f"{kind.upper()}_NOT_FOUND", f"{kind.title()} not found: {name}")
        return entry

    def _tables(self, schema: str, after: str) -> dict[str, Any]:
        self._found("schema", schema)
        names = sorted(name for name in self._entries if name.startswith(f"{schema}.") and name > f"{schema}.{after}")
        page = [self._entries[name] for name in names[:PAGE]]
        return {"tables": page, "next_page_token": page[-1]["name"] if len(names) > PAGE else None}

    def _changed(self, name: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
        for change in changes:
            if change["principal"] not in self._users:
                raise _RefusedError(404, "NOT_FOUND", f"User not found: {change['principal']}")
            if odd := {*change["add"], *change["remove"]} - PRIVILEGES:
                raise _RefusedError(400, "INVALID_ARGUMENT", f"Unexpected value {odd}")
            self._privileges[name][change["principal"]] |= set(change["add"])
            self._privileges[name][change["principal"]] -= set(change["remove"])
        changed = {change["principal"] for change in changes}
        return self._assigned({user: has for user, has in self._privileges[name].items() if user in changed})

    def _assigned(self, privileges: dict[str, set[str]]) -> dict[str, Any]:
        assigned = [{"principal": user, "privileges": sorted(has)} for user, has in privileges.items() if has]
        return {"privilege_assignments": assigned}
