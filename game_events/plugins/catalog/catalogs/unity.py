"""Unity Catalog, by its REST API: Spark needs no connector, and a run that registers a table starts no Spark for it.

The official client for Python would bring an HTTP library and an event loop of its own for the seven calls that are made here.
Each call is over after `TIMEOUT_S`; the token is sent to the address of the settings alone, as no redirect is followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, unquote

import httpx2
from deltalake import DeltaTable

from game_events.config.http_bounds import bounded
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import Table
from game_events.plugins.catalog.catalogs.places import of_another, same_place
from game_events.plugins.catalog.settings import CatalogSettings

#: Seconds of a call, and bytes of its answer: a page of tables with all columns.
TIMEOUT_S = 60.0
MOST_BYTES = 64 * 2**20
API = "api/2.1/unity-catalog"
#: Characters of a server's message that an error repeats.
SAID_CHARS = 300
#: Characters of a path that are themselves in an address: not all readers decode others.
IN_ADDRESSES = "/!$&'()*+,;=:@~"
#: Delta's names of types -> Unity's; all others are themselves in upper case.
TYPE_NAMES = {"integer": "INT"}
#: Delta's names of types -> SQL's; all others are themselves.
SQL_TYPES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


class UnityServer:
    """The calls of a server's API; each raises as `ask`."""

    def __init__(self, url: str, token: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self._api = f"{url}/{API}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = bounded(httpx2.Client(timeout=timeout_s, headers=headers), timeout_s, MOST_BYTES)

    @classmethod
    def of(cls, settings: CatalogSettings) -> Self | None:
        """The server of the settings; None: there is none."""
        token = settings.unity_token.get_secret_value() if settings.unity_token is not None else None
        return cls(settings.unity_url, token) if settings.unity_url is not None else None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> dict[str, Any]:
        """The answer of one call.

        Raises:
            MissingError: there is no such thing.
            TransientError: the server cannot be reached, or is broken.
            ConfigurationError: it refuses.
        """
        try:
            answer = self._client.request(method, f"{self._api}/{path}", params=query, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise TransientError(f"Unity Catalog at {self._api} does not answer: {type(error).__name__}") from error
        if answer.is_success:
            return _object(answer)
        said = f"Unity Catalog answers {method} {path} with {answer.status_code}: {_message(answer)}"
        if answer.status_code == 404:
            raise MissingError(said)
        raise (TransientError if answer.status_code >= 500 or answer.status_code == 429 else ConfigurationError)(said)

    def pages(self, path: str, key: str, **query: str) -> Iterator[dict[str, Any]]:
        """What a listing has, page by page."""
        more: dict[str, str] = {}
        while True:
            answer = self.ask("GET", path, None, **query, **more)
            yield from answer.get(key) or ()
            if not answer.get("next_page_token"):
                return
            more = {"page_token": answer["next_page_token"]}

    def permissions(self, kind: str, name: str) -> dict[str, set[str]]:
        """Principal -> privileges on a catalog, schema or table, as `SELECT` or `USE SCHEMA`."""
        assigned = self.ask("GET", f"permissions/{kind}/{in_path(name)}").get("privilege_assignments") or ()
        return {
            str(one["principal"]): {str(privilege).replace("_", " ") for privilege in one["privileges"]} for one in assigned
        }

    def change_permissions(self, kind: str, name: str, principal: str, *, add: list[str], remove: list[str]) -> None:
        """Give a principal privileges, and take others away."""
        changes = {"changes": [{"principal": principal, "add": add, "remove": remove}]}
        self.ask("PATCH", f"permissions/{kind}/{in_path(name)}", changes)


class MissingError(ConfigurationError):
    """The server has no such thing."""


class UnityCatalog:
    """A schema of Unity Catalog (`catalog.schema`)."""

    def __init__(self, server: UnityServer, name: str) -> None:
        self.name = name
        self._server = server
        self._catalog, _, self._schema = name.partition(".")

    def registered(self, ours: Mapping[str, Table]) -> set[str]:
        """Names of all tables; the schema is made if there is none.

        Raises:
            ConfigurationError: a table is that of another lakehouse, or there is no such catalog.
        """
        try:
            self._server.ask("GET", f"schemas/{in_path(self.name)}")
        except MissingError:
            self._server.ask("POST", "schemas", {"name": self._schema, "catalog_name": self._catalog})
        names = set()
        for entry in self._server.pages("tables", "tables", catalog_name=self._catalog, schema_name=self._schema):
            name = str(entry["name"])
            place = str(entry.get("storage_location") or "")
            if name in ours and not same_place(unquote(place), ours[name].uri):
                raise of_another(self.name, name, unquote(place), ours[name])
            names.add(name)
        return names

    def register(self, table: Table) -> None:
        """Register a table with its columns as they are now: readers take them from the table's log."""
        handle = table.open_to_read()
        self._server.ask("POST", "tables", {
            "name": table.name,
            "catalog_name": self._catalog,
            "schema_name": self._schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": columns(handle) if handle is not None else [],
            "storage_location": f"file://{quote(table.uri, safe=IN_ADDRESSES)}" if table.is_local else table.uri,
        })  # fmt: skip


def columns(handle: DeltaTable) -> list[dict[str, object]]:
    """A table's columns as the API takes them."""
    fields = json.loads(handle.schema().to_json())["fields"]
    return [
        {
            "name": field["name"],
            "type_text": _sql_type(field["type"]),
            "type_name": _type_name(field["type"]),
            "type_json": json.dumps(field),
            "position": position,
            "nullable": field["nullable"],
            "comment": field["metadata"].get("comment"),
        }
        for position, field in enumerate(fields)
    ]


def _type_name(delta_type: Any) -> str:  # noqa: ANN401 - Delta's JSON
    name = str(delta_type["type"] if isinstance(delta_type, dict) else delta_type.partition("(")[0])
    return TYPE_NAMES.get(name, name.upper())


def _sql_type(delta_type: Any) -> str:  # noqa: ANN401 - Delta's JSON
    if not isinstance(delta_type, dict):
        return SQL_TYPES.get(delta_type, str(delta_type))
    if delta_type["type"] == "array":
        return f"array<{_sql_type(delta_type['elementType'])}>"
    if delta_type["type"] == "map":
        return f"map<{_sql_type(delta_type['keyType'])},{_sql_type(delta_type['valueType'])}>"
    inner = ",".join(f"{field['name']}:{_sql_type(field['type'])}" for field in delta_type["fields"])
    return f"struct<{inner}>"


def in_path(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


def _object(answer: httpx2.Response) -> dict[str, Any]:
    if not answer.content.strip():
        return {}
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{answer.url.copy_with(query=None)} does not answer as Unity Catalog does: is it the right address?"
        )
    return value


def _message(answer: httpx2.Response) -> str:
    """What the server says; of no more than a line."""
    try:
        value = answer.json()
    except ValueError:
        value = answer.text
    said = str(value.get("message", value)) if isinstance(value, dict) else str(value)
    return " ".join(said.split())[:SAID_CHARS] or answer.reason_phrase
