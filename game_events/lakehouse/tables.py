"""Tables of the lakehouse: layers, keys, names, locations, and opening them.

Code uses a table's key; users and folders have its name, which differs by the setting `names` (`config/names.py`).
"""

from __future__ import annotations

import difflib
import logging
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from game_events.config.definitions.computed import RESERVED_GAMES, is_name
from game_events.config.file_layout import NO_LAYOUT, FileLayout, file_layouts
from game_events.config.names import FORMER_OWN, OWN, PROGRESS, Names
from game_events.config.settings import Settings
from game_events.config.type_names import SEPARATOR, TYPE_MARK, game_of, of_type, type_of
from game_events.decoding.columns import is_of_any_kind
from game_events.errors import ConfigurationError, ReadOnlyError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.open_table import DataFile, KnownVersion, OpenTable, data_files, of_columns, read_add_actions
from game_events.lakehouse.parts import Part, PartedTable
from game_events.lakehouse.storage import delta_options, has_no_content, store_errors_named, unopenable
from game_events.lakehouse.table_properties import (
    FORMER,
    Retention,
    Sizes,
    is_derived,
    is_made_again,
    refuse_other_format,
    refuse_unreadable,
    refuse_unwritable,
)

log = logging.getLogger(__name__)


class Layer(StrEnum):
    """A layer, as commands, reports, settings and the column `layer` of quarantine and `progress` name it.

    An aggregate that a user defined is a layer `gold:{name}` (`GoldAggregate.layer`).
    """

    BRONZE = "bronze"
    #: Written in bronze's pass: a layer in reports only.
    QUARANTINE = "quarantine"
    SILVER = "silver"
    GOLD = "gold"
    UNIFIED = "unified"
    #: The pipeline's own tables: a layer of owners and tags only.
    OWN = "own"


#: Layers that are made from bronze, in the order in which rows pass them; those that a run refreshes; those of a report.
DOWNSTREAM = (Layer.SILVER, Layer.GOLD, Layer.UNIFIED)
REFRESHED = (Layer.BRONZE, *DOWNSTREAM)
REPORTED = (Layer.BRONZE, Layer.QUARANTINE, *DOWNSTREAM)

#: What the layers of aggregates that users defined begin with.
OWN_GOLD = f"{Layer.GOLD}:"


def is_gold(layer: str) -> bool:
    """Whether a layer is gold's: of the built-in aggregate or of one that a user defined."""
    return layer == Layer.GOLD or layer.startswith(OWN_GOLD)


#: The tags of every table.
EVERY = "all"


@dataclass(frozen=True)
class Labels:
    """Owners (teams, `team:name`, and e-mail addresses) and tags (layer, or `all` -> key -> value)."""

    owners: tuple[str, ...] = ()
    tags: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Labels:
        """Those of the settings."""
        return cls(settings.owners, settings.tags)

    def of_layer(self, layer: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Owners and tags of a layer's tables; a layer's own tags win over those for all."""
        tags = self.tags.get(EVERY, {}) | self.tags.get(layer, {})
        return self.owners, tuple(sorted(tags.items()))


BRONZE = "bronze_events"
QUARANTINE = "quarantine_events"
UNIFIED = "gold_unified_player_agg"

#: Silver of all games, in the layout `partitioned`.
SILVER = "silver_events"

#: Values of `GAME_EVENTS_SILVER_LAYOUT`.
TABLES, PARTITIONED = "tables", "partitioned"
SCHEMAS = "schemas"
EVENT_LOG = "event_log"
ERASED_PEOPLE = "erased_people"
SOURCE_FILES = "source_files"

#: Of the export over HTTP: planned calls, outcome of each call, failed calls.
EXPORT_CALLS = "export_calls"
EXPORT_OUTCOMES = "export_outcomes"
EXPORT_FAILED_CALLS = "export_failed_calls"
EXPORT_TABLES = (EXPORT_CALLS, EXPORT_OUTCOMES, EXPORT_FAILED_CALLS)

#: For Spark: pattern of a file in a partition, with the value of its last folder as its one group.
PART_PATH = r"=([^/=]+)/[^/]+$"
AnyTable = TypeVar("AnyTable", bound=DeltaTable)

#: All tables but those of games.
OWN_TABLES = frozenset({BRONZE, QUARANTINE, SILVER, UNIFIED, *OWN})


def silver_name(name: str) -> str:
    """Key of a silver table: of a game's own, or of that of a message type (`of_type`)."""
    return f"silver_{name}_events"


def gold_name(game: str, aggregate: str = PLAYER_AGG) -> str:
    """Key of a game's gold table."""
    return f"gold_{game}_{aggregate}"


def gold_of_all(aggregate: str = PLAYER_AGG) -> str:
    """Key of the table with an aggregate of all games."""
    return f"gold_unified_{aggregate}"


def is_of_all_games(name: str) -> bool:
    """Whether a table, by its key, is one of silver or gold for all games, partitioned by game."""
    return name == SILVER or name.startswith("gold_unified_")


def is_silver(name: str) -> bool:
    """Whether a table, by its key, is silver: of one game, or of all."""
    return name == SILVER or game_of_silver(name) is not None


def game_of_silver(name: str) -> str | None:
    """The game of a silver table's key, or None for any other table."""
    called = called_in_silver(name)
    return None if called is None else game_of(called)


def called_in_silver(name: str) -> str | None:
    """What a silver table is called (`of_type`), by its key; None for any other table."""
    return _between("silver_", name, "_events")


def game_of_gold(name: str, aggregate: str = PLAYER_AGG) -> str | None:
    """The game of an aggregate's table, or None for any other table."""
    game = _between("gold_", name, f"_{aggregate}")
    return None if game in RESERVED_GAMES else game


def _between(before: str, name: str, after: str) -> str | None:
    game = name[len(before) : len(name) - len(after)]
    return game if game and name == f"{before}{game}{after}" else None


def layer_of(name: str) -> Layer:
    """The layer of a table's key: bronze, silver, gold, or `own` for the pipeline's own tables."""
    first = name.partition("_")[0]
    return {"quarantine": Layer.BRONZE, "bronze": Layer.BRONZE, "silver": Layer.SILVER, "gold": Layer.GOLD}.get(
        first, Layer.OWN
    )


def table_id(handle: DeltaTable | None) -> str | None:
    """Delta's id of a table; None: there is no table."""
    return str(handle.metadata().id) if handle is not None else None


def version_of(handle: DeltaTable | None) -> int | None:
    """Version of a table; None: there is no table."""
    return handle.version() if handle is not None else None


def add_actions(handle: DeltaTable) -> pa.Table:
    """The files of a version with all statistics, read from the log: columns `min.{column}`, `max.{column}` for each column."""
    return handle.whole.actions_of(handle.game) if isinstance(handle, Part) else read_add_actions(handle)


def files_of(handle: DeltaTable) -> tuple[DataFile, ...]:
    """The files of a version."""
    return handle.files() if isinstance(handle, OpenTable) else data_files(read_add_actions(handle))


def paths(handle: DeltaTable) -> list[str]:
    """Paths of a version's files, below the table's folder."""
    return [file.plain_path for file in files_of(handle)]


def paths_in(actions: pa.Table) -> list[str]:
    """The same of `add_actions`."""
    return [unquote(path) for path in actions.column("path").to_pylist()]


def names_of(handle: DeltaTable) -> frozenset[str]:
    """Names of a version's columns."""
    return of_columns(handle, _names)


def _names(handle: DeltaTable) -> frozenset[str]:
    return frozenset(field.name for field in handle.schema().fields)


def is_person(column: str, person: str | None) -> bool:
    """Whether a column identifies the person: by its name, or as its double of another type."""
    return person is not None and is_of_any_kind(column, person)


def has_persons(handle: DeltaTable, person: str | None) -> bool:
    """Whether a table has a column that identifies the person."""
    return any(is_person(f.name, person) for f in handle.schema().fields)


def is_game(name: object) -> bool:
    """Whether a name may become a game."""
    return isinstance(name, str) and is_name(name)


@dataclass(frozen=True)
class Table:
    """Location of a Delta table, existing or not.

    Attributes:
        name, uri, options: where it is.
        key: its name with the default settings; `name`, if none is given.
        person: column of the person's key (or `{person}__{type}`, with another type): none of its values may be in the
            table's log, which outlives the rows.
        owners, tags: from the settings.
        read_only: whatever would change the table raises ReadOnlyError.
        retention: of its older versions.
        sizes: what is read and written at a time.
        by: column by which the table is partitioned, if each of its parts is used as the table of a game.
        part: a game: this is its part of such a table, and handles are `Part`; None: it is a whole table.
        file_layout: which rows are in one of its files.
        features: Delta's features that the table is to have (`commits.enabling`).
    """

    name: str
    uri: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    person: str | None = None
    key: str = ""
    owners: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    read_only: bool = False
    retention: Retention = field(default_factory=Retention)
    sizes: Sizes = field(default_factory=Sizes)
    by: str | None = None
    part: str | None = None
    file_layout: FileLayout = NO_LAYOUT
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)

    @property
    def is_local(self) -> bool:
        """Whether the table is on a local file system."""
        return "://" not in self.uri

    @property
    def local_path(self) -> Path | None:
        """The folder, if the table is on a local file system."""
        return Path(self.uri) if self.is_local else None

    @property
    def whole(self) -> Table:
        """The table that this is a part of; a whole table itself."""
        if self.part is None:
            return self
        return replace(self, part=None, key=SILVER if game_of_silver(self.key) is not None else self.key)

    @property
    def folder(self) -> str:
        """Where the files of a part are, below `uri`, with a slash (`game_name=rummy/`); empty for a whole table."""
        return f"{self.by}={self.part}/" if self.part is not None else ""

    def in_files(self, columns: pa.Schema) -> pa.Schema:
        """The columns that files of these rows have: not the one that a part's folder says."""
        return columns if self.part is None else pa.schema([f for f in columns if f.name != self.by], columns.metadata)

    def opened(self, known: KnownVersion | None = None, columns: dict[Any, Any] | None = None) -> OpenTable:
        """The whole table: its newest version, or a known one, which need not be opened (`OpenTable.columns`)."""
        return (OpenTable if self.by is None else PartedTable)(self.uri, self.options, known, columns)

    @property
    def is_void(self) -> bool:
        """Whether there is a log that is none, so that the next run makes the table again. Local tables only.

        Of tables that are made from others, if nothing of the log was written out before a power cut; of `progress`, which only
        saves work, if the log cannot be read for whatever reason.
        """
        if not self.is_local or not is_made_again(self.key):
            return False
        if self.key != PROGRESS:
            return has_no_content(self.uri)
        try:
            DeltaTable(self.uri)
        except TableNotFoundError:
            return False
        except DeltaError:
            return True
        return False

    def clear_void(self) -> None:
        """Take away the log of a table that is none (`is_void`)."""
        if self.is_void:
            away = Path(self.uri, f"_void_{uuid.uuid4().hex}")
            Path(self.uri, "_delta_log").rename(away)
            shutil.rmtree(away)

    def require_writable(self) -> None:
        """Raise ReadOnlyError if it is read only."""
        if self.read_only:
            raise ReadOnlyError(f"{self.name} would be changed")

    def exists(self) -> bool:
        """Whether it has a log, readable or not: data files alone, left by a crash, are no table. Raises as `open`."""
        if self.part is not None:
            return self.open_to_read() is not None
        with store_errors_named(self.uri):
            return DeltaTable.is_deltatable(self.uri, self.options)

    def open(self) -> OpenTable | None:
        """A handle on the newest version, from which commits may be planned, or None if there is no such table (`is_void`).

        Raises:
            DataError: its log cannot be read, it has a feature that this project's readers do not support, or somebody else has
                altered it so that no commit of this project would be right (`writable`).
            ConfigurationError: another version of this project has written it, or the object store refuses access.
            TransientError: the object store does not answer.
        """
        handle = self.open_to_read()
        return None if handle is None else self.writable(handle)

    def open_to_read(self) -> OpenTable | None:
        """As `open`, also of a table that only others can write: for callers that plan no commit to it."""
        if self.part is not None:
            whole = self.whole.open_to_read()
            return whole.part(self.part) if isinstance(whole, PartedTable) else None
        opened = self.open_of_any_format()
        if opened is not None:
            return self.readable(opened)
        former = self.former
        if former is not None and former.exists():
            raise ConfigurationError(f"{FORMER}; table {former.uri}")
        return None

    @property
    def former(self) -> Table | None:
        """The table that it was in game_events 0.1, if that had another name."""
        old = next((old for old, new in FORMER_OWN.items() if new == self.key), None)
        if old is None:
            return None
        name = self.name.removesuffix(self.key) + old
        return replace(self, name=name, uri=self.uri.removesuffix(self.name) + name, key=old)

    def open_of_any_format(self) -> OpenTable | None:
        """A handle on the newest version of a whole table, for the migration; otherwise as `open_to_read`."""
        if self.local_path is not None and not (self.local_path / "_delta_log").is_dir():
            return None
        try:
            with store_errors_named(self.uri):
                return self.opened()
        except TableNotFoundError:
            return None
        except DeltaError as error:
            if self.is_void:
                log.warning("table=%s log_without_content=true made_again=true cause=%r", self.name, str(error))
                return None
            raise unopenable(self.uri, error) from error

    def readable(self, handle: AnyTable) -> AnyTable:
        """The handle; raises as `open` for a table that this project cannot read."""
        refuse_unreadable(handle, self.uri, self.key)
        refuse_other_format(handle, self.key)
        return handle

    def writable(self, handle: AnyTable, *, replaced: bool = False) -> AnyTable:
        """The handle; what is known of its columns and properties is looked at once.

        `replaced`: rows of the table are to be replaced or removed, as always in derived tables.

        Raises:
            DataError: somebody else has altered the table: it has a feature, constraint or partition column that commits of
                this project do not keep. The message has the statement that takes it back.
        """
        partitioned = self.key == UNIFIED or self.by is not None
        replaced = replaced or is_derived(self.key)
        refuse_unwritable(handle, self.uri, self.key, partitioned=partitioned, replaced=replaced)
        return handle


class Lakehouse:
    """All tables below one root path or URI."""

    def __init__(
        self,
        root: str,
        options: dict[str, str] | None = None,
        person: str | None = None,
        called: Names | None = None,
        labels: Labels | None = None,
        read_only: bool = False,
        retention: Retention | None = None,
    ) -> None:
        """Local roots become absolute, so that Spark's workers find them; ConfigurationError if the root is a file."""
        self.options = dict(options or {})
        self.person = person
        self.labels = labels or Labels()
        self.called = called or Names()
        self.read_only = read_only
        self.sizes = Sizes()
        self.retention = retention or Retention()
        #: Layout of silver and gold if there is no silver yet, and the column by which the layout `partitioned` has parts.
        self.layout = TABLES
        self.entity = ""
        #: The column with the time of an event.
        self.time = ""
        #: Whether games have silver tables for each message type.
        self.per_type = False
        #: Layer -> layout of its tables' files, of those that have any.
        self.file_layouts: Mapping[str, FileLayout] = {}
        #: Delta's features that tables are to have.
        self.features: tuple[str, ...] = ()
        if root.startswith("file://"):
            root = root.removeprefix("file://")
        if "://" not in root:
            path = Path(root).expanduser().resolve()
            nearest = next(place for place in (path, *path.parents) if place.exists())
            if not nearest.is_dir():
                raise ConfigurationError(f"GAME_EVENTS_LAKEHOUSE: {nearest} is not a folder")
            root = str(path)
        # delta-rs and Spark both know `s3://`; files are named in the log and in plans by one address.
        self.root = re.sub(r"^s3a://", "s3://", root).rstrip("/")

    @classmethod
    def of(cls, settings: Settings, *, read_only: bool = False) -> Lakehouse:
        """The lakehouse of the settings; ConfigurationError if its root is a file, or an object store that is not safe."""
        options = delta_options(settings)
        labels = Labels.of(settings)
        retention = Retention(settings.every_version_h, settings.replaced_files_h, settings.derived_replaced_files_h)
        lakehouse = cls(settings.lakehouse, options, settings.key_column, settings.names, labels, read_only, retention)
        lakehouse.layout = settings.silver_layout
        lakehouse.entity = settings.entity_column
        lakehouse.time = settings.time_column
        lakehouse.per_type = settings.type_tables is not None
        lakehouse.file_layouts = file_layouts(settings.layout, settings.statistics_columns, settings.time_column)
        lakehouse.features = settings.table_features
        return lakehouse

    def __getstate__(self) -> dict[str, Any]:
        """With the layout, which workers would otherwise look for, each by itself."""
        return {**vars(self), "is_partitioned": self.is_partitioned}

    @cached_property
    def is_partitioned(self) -> bool:
        """Whether the games share a table of silver and one of each aggregate, by the tables that are there, or the setting."""
        layout = self.found_layout()
        return (layout or self.layout) == PARTITIONED

    def found_layout(self) -> str | None:
        """The layout of the tables that are there; None: there is no silver table yet.

        One look at a folder, and with the setting `partitioned` a listing of the root.
        """
        if self._plain(SILVER).exists():
            return PARTITIONED
        # With the other setting there is nothing that could be mistaken.
        if self.layout == PARTITIONED and any(game_of_silver(name) is not None for name in self.names()):
            return TABLES
        return None

    def table(self, key: str) -> Table:
        """The table of that key, existing or not; of a game's silver or gold its part, in the layout `partitioned`."""
        if key.startswith(("silver_", "gold_")) and self.is_partitioned:
            if is_of_all_games(key):
                return replace(self._plain(key), by=self.entity)
            if (game := game_of_silver(key)) is not None:
                return self._part(game, key, SILVER)
            if (game := game_of_gold(key)) is not None:
                return self._part(game, UNIFIED, UNIFIED)
        return self._plain(key)

    def _part(self, game: str, key: str, whole: str) -> Table:
        return replace(self._plain(whole), by=self.entity, part=game, key=key)

    def _plain(self, key: str) -> Table:
        name = self.name_of(key)
        owners, tags = self.labels.of_layer(layer_of(key))
        where = name, f"{self.root}/{name}", self.options
        layer = Layer.SILVER if is_silver(key) else Layer.BRONZE if key == BRONZE else ""
        layout = self.file_layouts.get(layer, NO_LAYOUT)
        table = Table(*where, self.person, key, owners, tags, self.read_only, self.retention, self.sizes, file_layout=layout)
        return replace(table, features=self.features) if self.features else table

    def name_of(self, key: str) -> str:
        """The name of the table of a key."""
        return self.called.name_of(key).replace(TYPE_MARK, SEPARATOR)

    def key(self, name: str) -> str:
        """The key of the table of a name: what `table` takes."""
        return next(iter(self._keys_of([name])), name)

    def silver(self, name: str) -> Table:
        """A game's silver table, or that of one of its message types (`of_type`)."""
        return self.table(silver_name(name))

    def gold(self, game: str, aggregate: str = PLAYER_AGG) -> Table:
        """A game's gold table."""
        if self.is_partitioned:
            return self._part(game, gold_of_all(aggregate), gold_of_all(aggregate))
        return self.table(gold_name(game, aggregate))

    def silver_path(self) -> str:
        """Pattern of a file of a game's silver, with the game as its one group."""
        return PART_PATH if self.is_partitioned else self.called.silver_path(SEPARATOR if self.per_type else None)

    def gold_path(self) -> str:
        """Pattern of a file of a game's gold, with the game as its one group."""
        return PART_PATH if self.is_partitioned else self.called.gold_path()

    def games(self) -> list[str]:
        """Games with a silver table, sorted by the table's name; names are not validated.

        After types had tables, also what these are called: `transactions.games_of` leaves them out.
        """
        if self.is_partitioned:
            handle = self.table(SILVER).open_to_read()
            return handle.games() if isinstance(handle, PartedTable) else []
        return [name for name in map(called_in_silver, self.names()) if name is not None and type_of(name) is None]

    def type_tables(self, *, always: bool = False) -> Mapping[str, list[str]]:
        """Game -> what the silver tables of its message types are called, sorted; one listing, where there may be some.

        `always`: also by settings that have none, to empty those of other settings.
        """
        tables = defaultdict[str, list[str]](list)
        keys = self.names() if self.per_type or always else []
        for name in filter(None, map(called_in_silver, keys if self.per_type else map(_with_type, keys))):
            if type_of(name) is not None:
                tables[game_of(name)].append(name)
        return {game: sorted(names) for game, names in tables.items()}

    def names(self) -> list[str]:
        """Keys of the Delta tables below the root, sorted by name (`Names.keys_of`); one listing, nothing is opened.

        In an object store they may include a table before its first commit: opened, it is None.
        """
        if "://" not in self.root:
            root = Path(self.root)
            return self._keys_of(f.name for f in root.iterdir() if (f / "_delta_log").is_dir()) if root.is_dir() else []
        with store_errors_named(self.root):
            system = pafs.PyFileSystem(DeltaStorageHandler(self.root, self.options))
            listed = system.get_file_info(pafs.FileSelector("", recursive=False))
        # What begins so is hidden, as for Spark and Hive: plug-ins keep things beside the tables.
        folders = (f.base_name for f in listed if f.type == pafs.FileType.Directory)
        return self._keys_of(name for name in folders if not name.startswith("_"))

    def _keys_of(self, names: Iterable[str]) -> list[str]:
        """As `Names.keys_of`, with the game and the message type of each name that has both."""
        keys = self.called.keys_of(names)
        return [_with_type(key) for key in keys] if self.per_type else keys


def _with_type(key: str) -> str:
    """The key of a silver table, of whose name it is not known yet what is the game and what the message type."""
    game, separator, message_type = (called_in_silver(key) or "").rpartition(SEPARATOR)
    return silver_name(of_type(game, message_type)) if separator and game and message_type else key


def refuse_other_layout(lakehouse: Lakehouse) -> None:
    """Raise ConfigurationError if the tables of silver have another layout than the setting: they would have rows of both."""
    layout = lakehouse.found_layout()
    if layout in (None, lakehouse.layout):
        return
    names = lakehouse.called
    kept = f"one {names.name_of(SILVER)}" if layout == PARTITIONED else f"a silver table for each {names.entity}"
    old = ", ".join(map(names.name_of, (SILVER, "gold_unified_*") if layout == PARTITIONED else ("silver_*_events", "gold_*")))
    raise ConfigurationError(
        f"GAME_EVENTS_SILVER_LAYOUT is {lakehouse.layout}, and {lakehouse.root} has {kept} (`{layout}`): nothing was done. Set "
        f"it to {layout}, or use another root. To change it here, stop all runs, move the folders {old} away, and run "
        "`game-events run`: silver and gold are made again from bronze (docs/scale.md)"
    )


def no_table(lakehouse: Lakehouse, name: str, known: Iterable[str]) -> ConfigurationError:
    """The error for a name without a table; it suggests similar names."""
    if lakehouse.key(name.lower()) in OWN_TABLES:
        return ConfigurationError(f"there is no table {name!r} yet: nothing was ever put into it (`game-events tables`)")
    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return ConfigurationError(f"there is no table {name!r} below {lakehouse.root}{hint} (`game-events tables`)")


def existing_table(lakehouse: Lakehouse, name: str) -> tuple[Table, DeltaTable]:
    """A table that is there, and a handle on its newest version; raises `no_table`."""
    tables = {table.name: table for table in map(lakehouse.table, lakehouse.names())}
    table = tables.get(name)
    handle = table.open_to_read() if table is not None else None
    if table is None or handle is None:
        raise no_table(lakehouse, name, tables)
    return table, handle
