"""Names and places of tables in catalogs: which can be registered, how SQL quotes them, when two addresses are the same."""

from collections.abc import Mapping
from typing import NamedTuple

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse, Table


class Registered(NamedTuple):
    """What a catalog has: names of tables and views; of ours that are at another place: name -> what to do."""

    names: set[str]
    foreign: Mapping[str, str]


def same_place(first: str, second: str) -> bool:
    """Whether two addresses are those of one folder."""
    return compared(first) == compared(second)


def compared(uri: str) -> str:
    """An address for comparison: Spark gives `file:/a`, `file:///a` or `/a`, and `s3a` for `s3`."""
    return uri.removeprefix("file://").removeprefix("file:").replace("s3a://", "s3://", 1).rstrip("/")


def of_another(catalog: str, name: str, place: str, ours: Table) -> ConfigurationError:
    """The error for a table of the catalog that has the name of one of this lakehouse, and is at another place."""
    return ConfigurationError(
        f"{catalog}.{name} of the catalog is {compared(place)}, not {compared(ours.uri)}: set GAME_EVENTS_CATALOG to a "
        "database of this lakehouse's own, or drop that table from the catalog"
    )


def tables_of(lakehouse: Lakehouse) -> dict[str, Table]:
    """Name -> table; an object store may also have folders without a first commit. None is opened: one may be damaged."""
    tables = [lakehouse.table(key) for key in lakehouse.names()]
    return {t.name: t for t in tables if "://" not in lakehouse.root or t.exists()}


def quoted(name: str) -> str:
    """A name as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """A text as Spark's SQL quotes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
