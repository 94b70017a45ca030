"""Gives assets of one's own the tables of this graph, as what their parameter is annotated with (docs/extending.md)."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import dagster as dg
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pydantic import PydanticDeprecatedSince20

from game_events.config.settings import Settings, SettingsSource
from game_events.errors import ConfigurationError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.parts import Part, PartedHandle
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.storage.options import is_s3
from game_events.lakehouse.tables import Lakehouse, Table, is_game, no_table
from game_events.orchestration.keys import Keys
from game_events.orchestration.resources import SparkResource


class TableLoader(dg.ConfigurableIOManager):
    """Loads inputs that are tables of this graph, each as its newest version.

    A partition of silver or gold is one table. An input of several partitions is annotated `dict[str, ...]`: games with a table
    -> what the table has. Places and credentials are read in the run's process and are no Dagster configuration.
    """

    spark: dg.ResourceDependency[SparkResource]
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    def load_input(self, context: dg.InputContext) -> object:
        """The table of the input's asset and partition.

        Raises:
            ConfigurationError: there is no such table, or nothing of this kind can be made of it.
        """
        settings, kind = self.source.read(), context.dagster_type.typing_type
        lakehouse, keys = Lakehouse.of(settings), Keys.of(settings)
        games = list(context.asset_partition_keys) if context.has_asset_partitions else [None]
        if get_origin(kind) is dict:
            valid = [game for game in games if game is None or is_game(game)]
            tables = {game: table_of(lakehouse, keys, context.asset_key, game) for game in valid}
            opened = {game: (tables[game], handle) for game, handle in _opened(settings, tables).items()}
            kind = get_args(kind)[1]
            return {game: self._as(kind, table, handle) for game, (table, handle) in opened.items() if handle is not None}
        if len(games) != 1:
            raise ConfigurationError(f"input {context.name} is {len(games)} tables: annotate it with dict[str, ...]")
        table = table_of(lakehouse, keys, context.asset_key, games[0])
        handle = _opened(settings, {games[0]: table})[games[0]]
        if handle is None:
            raise no_table(lakehouse, table.name, [found.name for found in map(lakehouse.table, lakehouse.names())])
        return self._as(kind, table, handle)

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:  # noqa: ARG002 - Dagster's signature
        """Refused: the pipeline alone writes its tables."""
        raise ConfigurationError("this resource reads the pipeline's tables; give it to inputs (`input_manager_key`) only")

    def _as(self, kind: Any, table: Table, handle: DeltaTable) -> object:  # noqa: ANN401 - what a parameter is annotated with
        """A table as an annotation says; without one as a `DeltaTable`, of which nothing is read yet."""
        package, name = getattr(kind, "__module__", "").partition(".")[0], getattr(kind, "__name__", "")
        match package, name:
            case ("typing", "Any") | ("deltalake", "DeltaTable") if table.part is None:
                return handle
            case ("pyarrow", "Table"):
                return read_arrow(table, handle)
            case ("pandas", "DataFrame"):
                return read_arrow(table, handle).to_pandas()
            case ("polars", "DataFrame" | "LazyFrame"):
                # No dependency of this project's: whoever annotates with it has imported it.
                polars = sys.modules["polars"]
                rows = polars.scan_delta(handle.whole if isinstance(handle, Part) else handle)
                if table.part is not None:
                    rows = rows.filter(polars.col(table.by) == table.part)
                return rows if name == "LazyFrame" else rows.collect()
            case ("pyspark", "DataFrame"):
                read = self.spark.spark_session.read.format("delta").load(table.uri)
                return read if table.part is None else read.where(read[f"`{table.by}`"] == table.part)
        handles = "deltalake.DeltaTable, " if table.part is None else ""
        what = f"table {table.name}" if table.part is None else f"{table.part}'s part of {table.name}"
        raise ConfigurationError(
            f"{what} cannot be loaded as {package}.{name}: annotate the parameter with {handles}"
            "pyarrow.Table, polars.DataFrame or LazyFrame, pandas.DataFrame, or pyspark.sql.DataFrame"
        )


def _opened(settings: Settings, tables: Mapping[str | None, Table]) -> dict[str | None, DeltaTable | None]:
    """Partition -> handle of its table, or of its part of one, which is opened once for all; None: there is none."""
    handles, wholes = dict[str | None, DeltaTable | None](), dict[str, DeltaTable | None]()
    for game, table in tables.items():
        if table.part is None:
            handles[game] = open_table(settings, table)
            continue
        if table.uri not in wholes:
            wholes[table.uri] = table.whole.open_to_read()
        whole = wholes[table.uri]
        handles[game] = whole.part(table.part) if isinstance(whole, PartedHandle) else None
    return handles


def table_of(lakehouse: Lakehouse, keys: Keys, asset: dg.AssetKey, game: str | None) -> Table:
    """The table of an asset, or of its partition.

    Raises:
        ConfigurationError: no game may have the partition's name.
    """
    name = asset.path[-1]
    if game is None:
        return lakehouse.table(lakehouse.key(name))
    if not is_game(game):
        # Its path could lead to any other table.
        raise ConfigurationError(f"{game!r} is a partition of {name} with a name that no game may have: delete it")
    if asset == keys.silver:
        return lakehouse.silver(game)
    return lakehouse.gold(game, PLAYER_AGG if asset == keys.gold else name.removeprefix(keys.named("gold_")))


def open_table(settings: Settings, table: Table) -> DeltaTable | None:
    """A table by Dagster's resource for Delta tables, with the store of the settings; None: there is no such table."""
    with warnings.catch_warnings():
        # dagster-deltalake 0.29 uses a method that pydantic has given another name.
        warnings.filterwarnings("ignore", "The `dict` method is deprecated", PydanticDeprecatedSince20)
        # A third of a second of every start, for who uses it only.
        from dagster_deltalake import DeltaTableResource, LocalConfig, S3Config  # noqa: PLC0415
        from dagster_deltalake.config import ClientConfig  # noqa: PLC0415

        # Credentials, and all that concerns other stores, delta-rs reads from the environment.
        store: S3Config | LocalConfig = LocalConfig()
        client, options = ClientConfig(), table.options
        if is_s3(settings.lakehouse):
            store = S3Config(
                region=options.get("AWS_REGION"),
                endpoint=options.get("AWS_ENDPOINT_URL"),
                virtual_hosted_style_request=options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
            )
            client = ClientConfig(allow_http="AWS_ALLOW_HTTP" in options)
        try:
            with store_errors_named(table.uri):
                return table.readable(DeltaTableResource(url=table.uri, storage_options=store, client_options=client).load())
        except TableNotFoundError:
            return None
