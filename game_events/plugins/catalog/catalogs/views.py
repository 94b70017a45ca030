"""Views of message types in a catalog (`CATALOG_VIEWS=types`): made and renewed with the registration of the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from game_events.config.type_names import type_name
from game_events.errors import GameEventsError
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Lakehouse, Table, add_actions, names_of
from game_events.plugins.catalog.catalogs.places import literal, quoted
from game_events.plugins.catalog.catalogs.spark_catalog import SparkCatalog
from game_events.plugins.catalog.type_views import Dialect, TypeView


class Renewed(NamedTuple):
    """Names of views that were made, and games of which some could not be: game -> why."""

    names: list[str]
    failed: dict[str, Exception]


class TypeViews:
    """The views of a lakehouse's types, and what was read for them: a loop asks for nothing twice."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse
        #: File -> types in it, of those whose statistics do not say it.
        self._types: dict[str, frozenset[str]] = {}
        #: View -> its query, as it is in the catalog.
        self._made: dict[str, str] = {}

    def renew(self, catalog: SparkCatalog, games: Iterable[str]) -> Renewed:
        """Make the views of games that the catalog lacks, or has with other columns."""
        tables = set(map(self._lakehouse.name_of, self._lakehouse.names()))
        done = Renewed([], {})
        for game in sorted(games):
            try:
                self._renew(catalog, game, tables, done.names)
            except (GameEventsError, PySparkException, DeltaError, OSError) as error:
                done.failed[game] = error
        return done

    def _renew(self, catalog: SparkCatalog, game: str, tables: set[str], renewed: list[str]) -> None:
        dialect = Dialect(quoted, literal, catalog.of_table)
        table = self._lakehouse.silver(game)
        handle = table.open_to_read()
        if handle is None or MESSAGE_TYPE not in names_of(handle):
            return
        types = self._types_in(table, handle)
        for view in [TypeView(table, name) for name in sorted(set(map(type_name, types)))]:
            name = self._lakehouse.name_of(view.key)
            query = view.query(handle, types, dialect)
            # A type that has a table of that name needs no view.
            if query is None or name in tables or self._made.get(name) == query:
                continue
            if catalog.make_view(name, query):
                renewed.append(name)
            self._made[name] = query

    def _types_in(self, table: Table, handle: DeltaTable) -> frozenset[str]:
        """Full names of the types in a table: of most files the log knows it, of the others their one column is read once."""
        actions = add_actions(handle)
        lowest = _column(actions, f"min.{MESSAGE_TYPE}")
        highest = _column(actions, f"max.{MESSAGE_TYPE}")
        types = set[str]()
        for path, low, high in zip(actions["path"].to_pylist(), lowest, highest, strict=True):
            if low is not None and low == high:
                types.add(low)
                continue
            if path not in self._types:
                self._types[path] = _read(table, path)
            types |= self._types[path]
        return frozenset(types)


def _column(actions: pa.Table, name: str) -> list[str | None]:
    return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows


def _read(table: Table, path: str) -> frozenset[str]:
    system, prefix = file_system(table)
    with pq.ParquetFile(prefix + unquote(path), filesystem=system) as file:
        rows = file.read([MESSAGE_TYPE])  # without it, if the file is older than the column
    found = pc.unique(rows[MESSAGE_TYPE]).to_pylist() if MESSAGE_TYPE in rows.column_names else []
    return frozenset(name for name in found if name is not None)
