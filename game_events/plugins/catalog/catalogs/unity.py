"""Unity Catalog, by its REST API: Spark needs no connector, and a run that registers a table starts no Spark for it.

The official client for Python would bring an HTTP library and an event loop of its own for the seven calls that are made here.
Each call is over after `TIMEOUT_S`, a listing after `MOST_PAGES`; the token is sent to the address of the settings alone, as no
redirect is followed.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

import httpx2
import msgspec
from deltalake import DeltaTable

from game_events.config.http_bounds import bounded
from game_events.config.masking import mask_all, value_of
from game_events.config.network import UNTRUSTED
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import BRONZE, Table
from game_events.plugins.catalog.catalogs.places import Registered, of_another, same_place
from game_events.plugins.catalog.settings import CatalogSettings

#: Seconds of a call, and bytes of its answer: a page of tables with all columns.
TIMEOUT_S = 60.0
MOST_BYTES = 64 * 2**20
API = "api/2.1/unity-catalog"
#: Pages of a listing: of a server that always says that there are more.
MOST_PAGES = 10_000
#: Characters of a server's message that an error repeats.
SAID_CHARS = 300
#: Characters of it that are looked at.
READ_CHARS = 10_000
#: Characters of a path that are themselves in an address: not all readers decode others.
IN_ADDRESSES = "/!$&'()*+,;=:@~"
#: Delta's names of types -> Unity's; all others are themselves in upper case.
TYPE_NAMES = {"integer": "INT"}
#: Delta's names of types -> SQL's; all others are themselves.
SQL_TYPES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


class _Entry(msgspec.Struct):
    name: str
    storage_location: str | None = None


class _Tables(msgspec.Struct):
    tables: list[_Entry] | None = None
    next_page_token: str | None = None


class _Assignment(msgspec.Struct):
    principal: str
    privileges: list[str]


class _Permissions(msgspec.Struct):
    privilege_assignments: list[_Assignment] | None = None


T = TypeVar("T")


class UnityServer:
    """The calls of a server's API; each raises as `ask`."""

    def __init__(self, url: str, token: str | None, timeout_s: float = TIMEOUT_S, authorities: Path | None = None) -> None:
        """`authorities`: PEM file of those that its certificate is verified with, instead of the system's."""
        self._api = f"{url}/{API}"
        self._secrets = [token] if token else []
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trust = True if authorities is None else ssl.create_default_context(cafile=str(authorities))
        self._client = bounded(httpx2.Client(timeout=timeout_s, headers=headers, verify=trust), timeout_s, MOST_BYTES)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The server of the settings; None: there is none."""
        own = CatalogSettings.of(settings)
        return cls(own.unity_url, value_of(own.unity_token), authorities=settings.tls_ca_file) if own.unity_url else None

    def close(self) -> None:
        """End its connections."""
        self._client.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> dict[str, Any]:
        """The answer of one call.

        Raises:
            MissingError: there is no such thing.
            AwayError: the server cannot be reached.
            TransientError: it is broken.
            ConfigurationError: it refuses.
        """
        try:
            answer = self._client.request(method, f"{self._api}/{path}", params=query, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            why = type(error).__name__
            if UNTRUSTED in str(error):
                why = "its certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
            raise AwayError(f"Unity Catalog at {self._api} does not answer: {why}") from error
        if answer.is_success:
            return _object(answer, path)
        message = mask_all(_message(answer), self._secrets)  # a server may repeat what it was told
        said = f"Unity Catalog answers {method} {path} with {answer.status_code}: {message[:SAID_CHARS]}"
        if answer.status_code == 404:
            raise MissingError(said)
        raise (TransientError if answer.status_code >= 500 or answer.status_code == 429 else ConfigurationError)(said)

    def tables(self, catalog: str, schema: str) -> Iterator[tuple[str, str]]:
        """(name, address) of each table of a schema."""
        query = {"catalog_name": catalog, "schema_name": schema}
        seen = {""}
        while True:
            page = self._read(_Tables, "tables", **query)
            yield from ((entry.name, entry.storage_location or "") for entry in page.tables or ())
            token = page.next_page_token or ""
            if not token:
                return
            if token in seen or len(seen) > MOST_PAGES:
                raise ConfigurationError(f"Unity Catalog does not end its list of the tables of {catalog}.{schema}")
            seen.add(token)
            query |= {"page_token": token}

    def permissions(self, kind: str, name: str) -> dict[str, set[str]]:
        """Principal -> privileges on a catalog, schema or table, as `SELECT` or `USE SCHEMA`."""
        assigned = self._read(_Permissions, f"permissions/{kind}/{in_path(name)}").privilege_assignments or ()
        return {one.principal: {privilege.replace("_", " ") for privilege in one.privileges} for one in assigned}

    def _read(self, kind: type[T], path: str, **query: str) -> T:
        answer = self.ask("GET", path, None, **query)
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"Unity Catalog's answer to GET {path} is not as its API says: {error}") from error

    def change_permissions(self, kind: str, name: str, principal: str, *, add: list[str], remove: list[str]) -> None:
        """Give a principal privileges, and take others away."""
        changes = {"changes": [{"principal": principal, "add": add, "remove": remove}]}
        self.ask("PATCH", f"permissions/{kind}/{in_path(name)}", changes)


class AwayError(TransientError):
    """The server does not answer: whatever else is asked of it now fails, too."""


class MissingError(ConfigurationError):
    """The server has no such thing."""


class UnityCatalog:
    """A schema of Unity Catalog (`catalog.schema`)."""

    def __init__(self, server: UnityServer, name: str) -> None:
        self.name = name
        self._server = server
        self._catalog, _, self._schema = name.partition(".")

    def registered(self, ours: Mapping[str, Table]) -> Registered:
        """Names of all tables; the schema is made if there is none.

        Raises:
            ConfigurationError: bronze is that of another lakehouse, or there is no such catalog.
        """
        try:
            self._server.ask("GET", f"schemas/{in_path(self.name)}")
        except MissingError:
            self._server.ask("POST", "schemas", {"name": self._schema, "catalog_name": self._catalog})
        names = set()
        foreign = {}
        for name, place in self._server.tables(self._catalog, self._schema):
            if name not in ours or same_place(unquote(place), ours[name].uri):
                names.add(name)
                continue
            error = of_another(self.name, name, unquote(place), ours[name])
            if ours[name].key == BRONZE:  # the schema is another lakehouse's
                raise error
            foreign[name] = str(error)
        return Registered(names, foreign)

    def close(self) -> None:
        """End its connections."""
        self._server.close()

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


def _object(answer: httpx2.Response, path: str) -> dict[str, Any]:
    if not answer.content.strip():
        return {}
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        server = answer.url.copy_with(path="/", query=None)
        raise ConfigurationError(f"{server} does not answer {path} as Unity Catalog does: is it the right address?")
    return value


def _message(answer: httpx2.Response) -> str:
    """What the server says; of no more than a line."""
    try:
        value = answer.json()
    except ValueError:
        value = answer.text
    said = str(value.get("message", value)) if isinstance(value, dict) else str(value)
    return " ".join(said.split())[:READ_CHARS] or answer.reason_phrase
