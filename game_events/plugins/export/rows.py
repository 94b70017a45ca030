"""Rows to be exported, in the columns of `tables.ROWS`: new rows of silver or gold, all games in one Spark plan; rows of files.

Progress is in the table of planned calls: a `txn` for each table is the last bronze batch with rows in chunks. A table with
replaced rows (a full refresh, a repair, another bronze) has another name there: the setting `rest_on_replaced`, or an option
of the run, decides what is sent of it.

Each file of a folder of Parquet files, or of a Delta table, is exported once. Its chunks are fixed together, and planned calls
and delivery log have its address, which shows whether it was sent. In rewritten files of a Delta table (compaction, a delete)
new and old rows cannot be distinguished: it is refused.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate, chain
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from game_events.config.type_names import game_of, of_type, type_of
from game_events.errors import ConfigurationError, DataError, GameEventsError, first_line
from game_events.lakehouse.commits.group import for_games, opened
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, games_of, incarnation, silver_app, txn
from game_events.lakehouse.data.columns import SOURCE
from game_events.lakehouse.data.reading import FileSelection, files_with, read_arrow, selection
from game_events.lakehouse.data.spark_files import game_of_file, read_files, spark_path, spark_schema
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Lakehouse, Table, add_actions, is_game, is_person, paths
from game_events.pipeline.context import Pipeline
from game_events.plugins.export.settings import ExportSettings
from game_events.plugins.export.tables import ROWS, ChunkOrigin, ExportTables
from game_events.sources.factory import place_of
from game_events.spark.schemas import quoted

#: Rows of a slice, about: what is planned and sent before the next slice is planned.
SLICE_ROWS = 500_000


@dataclass(frozen=True)
class OnReplaced:
    """How tables with replaced rows are exported.

    Attributes:
        usual: for all of them: hold, resend, go_on.
        resend: games of which all rows are sent again, replaced or not.
        go_on: games of which only later rows are sent.
    """

    usual: str = "hold"
    resend: frozenset[str] = frozenset()
    go_on: frozenset[str] = frozenset()

    def way(self, game: str, *, replaced: bool) -> str:
        """How a game is exported: `new` rows only, or hold, resend, go_on, skip (all present rows)."""
        if game in self.resend:
            return "resend"
        if game in self.go_on:
            return "skip"
        return self.usual if replaced else "new"


@dataclass(frozen=True)
class Step:
    """New rows of one game, or of the table of one of its message types; `gold`: None unless gold is exported.

    Attributes:
        name: what the table of silver is called (`type_names.of_type`).
        above, upto: bronze batches (above, upto] are new.
        files: silver's files with new rows.
        origin: origin of the rows, for the chunks' keys.
        apps: `content`, `bronze`, `any` (latest exported batch), `resent` (full resends) -> `txn` of planned calls.
        expected: their values now.
        resent: full resends, this one included.
        types: of gold: further tables of silver with new rows, and these files.
    """

    name: str
    silver: DeltaTable
    gold: DeltaTable | None
    above: int
    upto: int
    files: FileSelection
    origin: ChunkOrigin
    apps: Mapping[str, str]
    expected: Mapping[str, int | None]
    resent: int
    types: Mapping[str, tuple[DeltaTable, FileSelection]] = field(default_factory=dict)

    @property
    def game(self) -> str:
        """The game."""
        return game_of(self.name)

    @property
    def of_silver(self) -> list[Step]:
        """A step for each table of silver with the new rows."""
        return [self, *(replace(self, name=name, silver=t, files=files) for name, (t, files) in self.types.items())]

    @property
    def advance(self) -> dict[str, int]:
        """Values of `apps` once the rows are planned."""
        return {app: self.resent if name == "resent" else self.upto for name, app in self.apps.items()}

    def limited(self, batch: int) -> Self:
        """The step up to a batch."""
        upto = min(self.upto, max(batch, self.above))
        data = tuple(file for file in self.files.data if (file.lowest_batch or 0) <= upto)
        origin = replace(self.origin, batch_to=upto)
        return replace(self, upto=upto, files=replace(self.files, data=data), origin=origin)


def find_changes(pipeline: Pipeline, planned: DeltaTable | None, on_replaced: OnReplaced) -> tuple[list[Step], dict[str, str]]:
    """The new rows of every game (about `SLICE_ROWS`, and at least one batch), and why games are held back or failed."""
    bronze = pipeline.open_bronze()
    if bronze is None:
        return [], {}
    identity = BronzeIdentity.of(bronze)

    listed = pipeline.lakehouse.type_tables()

    def find(name: str) -> Step | str | None:
        try:
            return _find_step(pipeline, identity, planned, on_replaced, name, listed)
        except GameEventsError as error:  # of one game: the others are exported
            return str(error)

    games = sorted(filter(is_game, games_of(pipeline.lakehouse)))
    of_gold = ExportSettings.of(pipeline.settings).rest_source == "gold"
    results = for_games(games if of_gold else [*games, *chain.from_iterable(listed.values())], find)
    steps = [step for step in results.values() if isinstance(step, Step)]
    return _bounded(steps), {game_of(name): why for name, why in results.items() if isinstance(why, str)}


def _find_step(
    pipeline: Pipeline,
    identity: BronzeIdentity,
    planned: DeltaTable | None,
    on_replaced: OnReplaced,
    name: str,
    listed: Mapping[str, Sequence[str]],
) -> Step | None:
    """New rows of one table; None: there are none, or none of this bronze and this silver yet. DataError: they are held back.

    `listed`: game -> the tables of its message types.
    """
    table = pipeline.lakehouse.silver(name)
    silver = pipeline.tables.peek(table)
    upto = identity.taken(silver)
    if silver is None or upto is None:
        return None
    gold: DeltaTable | None = None
    types: dict[str, tuple[DeltaTable, FileSelection]] = {}
    if ExportSettings.of(pipeline.settings).rest_source == "gold":
        table = pipeline.lakehouse.gold(name)
        gold = pipeline.tables.peek(table)
        upto = txn(gold, silver_app(silver))
        if gold is None or upto is None:
            return None
    noted = noted_of(planned, identity, name, silver, gold)
    above, resent = start_of(game_of(name), table.name, upto, noted.held, on_replaced)
    if _is_planned(noted.held, above, upto, resent):
        return None
    if gold is not None:
        handles = opened(listed.get(name, []), pipeline.lakehouse.silver, pipeline.tables.peek)
        types = {one: (handle, selection(handle, above)) for one, handle in handles.items()}
    origin = ChunkOrigin(table.name, game_of(name), f"{noted.content}:{resent}", above, upto)
    expected = {app: noted.held[part] for part, app in noted.apps.items()}
    return Step(name, silver, gold, above, upto, selection(silver, above), origin, noted.apps, expected, resent, types)


@dataclass(frozen=True)
class Noted:
    """What planned calls say of one table: `held`, the values of `apps` (as of a `Step`). `content`: which rows it has."""

    content: str
    apps: Mapping[str, str]
    held: Mapping[str, int | None]


def noted_of(
    planned: DeltaTable | None, identity: BronzeIdentity, name: str, silver: DeltaTable, gold: DeltaTable | None
) -> Noted:
    """What is noted of a table of silver, or (`gold`) of a game's gold and the silver that it is made from."""
    content = f"{silver.metadata().id}:{incarnation(silver)}"
    kind = Txn.SILVER
    if gold is not None:
        content = f"{gold.metadata().id}:{content}"
        kind = Txn.GOLD
    parts = {"content": content, "bronze": identity.key, "any": "", "resent": "resent"}
    apps = {part: kind.of(name, value) for part, value in parts.items()}
    return Noted(content, apps, {part: txn(planned, app) for part, app in apps.items()})


def _is_planned(held: Mapping[str, int | None], above: int, upto: int, resent: int) -> bool:
    """Whether the planned calls have all rows up to a batch, of this content and of so many full resends."""
    return above == upto and held["content"] == upto and resent == (held["resent"] or 0)


def start_of(game: str, table: str, upto: int, held: Mapping[str, int | None], on_replaced: OnReplaced) -> tuple[int, int]:
    """Batch above which rows are sent, and number of full resends; DataError: a user decides what is sent."""
    resent = held["resent"] or 0
    way = on_replaced.way(game, replaced=held["content"] is None and held["any"] is not None)
    if way == "hold":
        raise DataError(
            f"the rows of {table} were replaced since they were exported (a full refresh, a repair, another bronze): choose "
            f"`game-events export run --resend {game}` (all of them again, under new keys) or `--go-on {game}` (only what "
            "comes from now on); GAME_EVENTS_REST_ON_REPLACED decides it for every such table"
        )
    # Of the same bronze the batch numbers are still valid; of another one all present rows are old.
    still_valid = upto if held["bronze"] is None else held["bronze"]
    starts = {"new": held["content"] or 0, "resend": 0, "skip": upto, "go_on": still_valid}
    return starts[way], resent + (way == "resend")


def _bounded(steps: list[Step]) -> list[Step]:
    """The steps up to the batch that reaches `SLICE_ROWS`; gold's are unchanged, as only changed players are sent."""
    if sum(step.files.rows for step in steps) <= SLICE_ROWS or steps[0].gold is not None:
        return steps
    limit = _last_batch(steps)
    limited = [(step.limited(limit), step) for step in steps]
    return [new for new, step in limited if new.upto > new.above or step.upto == step.above]


def _last_batch(steps: list[Step]) -> int:
    """The last batch of a slice: that of the last file, by batch, that fits into `SLICE_ROWS`, or of the first one."""
    known = sorted((file.highest_batch or step.upto, file.rows or 0) for step in steps for file in step.files.data)
    fitting = bisect_right(list(accumulate(rows for _, rows in known)), SLICE_ROWS)
    return known[max(fitting, 1) - 1][0]


#: Rows up to which one task cuts all of them, without a shuffle.
SMALL_ROWS = 250_000

ORDER = ("_group", "_batch", "_place", "_kafka_partition", "_kafka_offset", "_person", "json")

#: Columns beside those of tables and files.
_GAME = "_step_game"
_FROM = "_step_from"
_TO = "_step_to"
_KEY = "_step_key"
_FILE = "_step_file"
_NUMBER = "_step_number"

_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def new_rows(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame:
    """Rows of `tables.ROWS`, grouped by game and sorted by coordinates."""
    _ = pipeline.spark  # before any column is named: that needs a session
    read = _of_gold if steps[0].gold is not None else _of_silver
    groups = _same_columns(steps, lambda step: step.gold or step.silver)
    rows = reduce(DataFrame.unionByName, (read(pipeline, group) for group in groups))
    count = sum(step.files.rows for step in steps)
    # A game's rows go to one task: a chunk holds neighbours.
    rows = rows.coalesce(1) if count <= SMALL_ROWS else rows.repartition(min(len(steps), 1 + count // SMALL_ROWS), "_group")
    return rows.sortWithinPartitions(*ORDER)


def shaped(rows: DataFrame, person: str, group: Column, columns: Iterable[str], **coordinates: Column) -> DataFrame:
    """Rows in the columns of `tables.ROWS`; missing coordinates are NULL. `person`: column with a person's id."""
    persons = [name for name in rows.columns if is_person(name, person)]
    kinds = {"_batch": "bigint", "_place": "string", "_kafka_partition": "int", "_kafka_offset": "bigint"}
    return rows.select(
        group.alias("_group"),
        *(coordinates.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()),
        F.coalesce(*(F.col(quoted(name)).cast("string") for name in persons), F.lit(None).cast("string")).alias("_person"),
        _as_json(rows, columns).alias("json"),
    )


def _silver(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame:
    uris = [uri for step in steps for uri in step.files.files]
    rows = read_files(pipeline.spark, uris, spark_schema(steps[0].silver.schema()))
    entity = F.col(quoted(pipeline.settings.entity_column))
    limits = pa.table(
        {_GAME: [s.game for s in steps], _FROM: [s.above for s in steps], _TO: [s.upto for s in steps]},
        schema=pa.schema([(_GAME, pa.string()), (_FROM, pa.int64()), (_TO, pa.int64())]),
    )
    rows = rows.join(F.broadcast(pipeline.spark.createDataFrame(limits)), entity == F.col(_GAME))
    return rows.where((F.col("_batch") > F.col(_FROM)) & (F.col("_batch") <= F.col(_TO))).drop(_GAME, _FROM, _TO)


def _of_silver(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame:
    rows = _silver(pipeline, steps)
    coordinates = {name: F.col(name) for name in ("_batch", "_kafka_partition", "_kafka_offset")}
    group = F.col(quoted(pipeline.settings.entity_column))
    if (message_type := type_of(steps[0].name)) is not None:  # of all these steps
        group = F.concat(group, F.lit(of_type("", message_type)))
    place = place_of(sourced=SOURCE in rows.columns)
    return shaped(rows, pipeline.settings.key_column, group, rows.columns, _place=place, **coordinates)


def _of_gold(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame:
    """Gold's current rows of players with new events; of a game that was never exported all of gold."""
    entity = F.col(quoted(pipeline.settings.entity_column))
    key = F.col(quoted(pipeline.settings.key_column))
    parts = [_gold(pipeline, [step for step in steps if step.above == 0])]
    known = [step for step in steps if step.above > 0]
    rows = _gold(pipeline, known)
    if rows is not None:
        players = _players(pipeline, known)
        parts.append(rows.join(players, (entity == F.col(_GAME)) & key.eqNullSafe(F.col(_KEY)), "left_semi"))
    sent = [shaped(part, pipeline.settings.key_column, entity, part.columns) for part in parts if part is not None]
    return reduce(DataFrame.unionByName, sent or [pipeline.spark.createDataFrame([], ROWS)])


def _players(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame:
    """Game and id of the players with new events."""
    entity = F.col(quoted(pipeline.settings.entity_column)).alias(_GAME)
    key = F.col(quoted(pipeline.settings.key_column)).alias(_KEY)
    of_silver = [one for step in steps for one in step.of_silver]
    silver = [_silver(pipeline, group) for group in _same_columns(of_silver, lambda step: step.silver)]
    return reduce(DataFrame.unionByName, (part.select(entity, key) for part in silver)).distinct()


def _gold(pipeline: Pipeline, steps: Sequence[Step]) -> DataFrame | None:
    """All rows of gold of steps with the same columns; None: there are none."""
    tables = [step.gold for step in steps if step.gold is not None]
    uris = [uri for table in tables for uri in files_with(table)]
    if not uris:
        return None
    entity = pipeline.settings.entity_column
    rows = read_files(pipeline.spark, uris, spark_schema(tables[0].schema()))
    columns = [column for column in rows.columns if column != entity]
    return rows.select(game_of_file(uris, pipeline.lakehouse.gold_path()).alias(entity), *columns)


def _same_columns(steps: Sequence[Step], table: Callable[[Step], DeltaTable]) -> list[list[Step]]:
    """The steps grouped by their tables' columns, as tables with the same columns are read together; a game once in each."""
    groups: dict[tuple[str, str | None], list[Step]] = {}
    for step in steps:
        columns = json.dumps(json.loads(table(step).schema().to_json()), sort_keys=True)
        groups.setdefault((columns, type_of(step.name)), []).append(step)
    return list(groups.values())


def _as_json(rows: DataFrame, columns: Iterable[str]) -> Column:
    types = {field.name: field.dataType for field in rows.schema.fields}
    parts = []
    for name in columns:
        column = F.col(quoted(name))
        kind = _without_decimals(types[name])
        parts.append((column if kind == types[name] else column.cast(kind)).alias(name))
    return F.to_json(F.struct(*parts), _OPTIONS)


def _without_decimals(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _without_decimals(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_decimals(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_without_decimals(kind.keyType), _without_decimals(kind.valueType), kind.valueContainsNull)
    return kind


def folder_table(pipeline: Pipeline, folder: str) -> Table:
    """A folder as a table, with the lakehouse's access to its object store."""
    root, _, name = Lakehouse(folder).root.rpartition("/")
    return Table(name, f"{root}/{name}", pipeline.lakehouse.options)


def new_files(tables: ExportTables, place: Table, delta: DeltaTable | None, planned: DeltaTable | None) -> list[str]:
    """Addresses of a folder's Parquet files that were not exported yet, sorted; `delta`: a version of it as a Delta table.

    Raises:
        ConfigurationError: there is no such folder.
        DataError: the Delta table's files were rewritten since.
    """
    here = {f"{place.uri}/{path}" for path in (paths(delta) if delta is not None else _listed(place))}
    sources: set[str] = set()
    for table, handle in ((tables.deliveries, tables.deliveries.open()), (tables.planned, planned)):
        if handle is not None:
            sources.update(pc.unique(read_arrow(table, handle, ["source"]).column("source").drop_null()).to_pylist())
    known = {source for source in sources if source.startswith(f"{place.uri}/")}
    gone = known - here
    if delta is not None and gone:
        raise DataError(
            f"{place.uri}: {len(gone):,} of its files that were exported are no part of the table any more: it was compacted, "
            "or rows were deleted, and which rows of the other files were sent is unknown. Export it from a copy, or from "
            "silver or gold, which are followed by batch"
        )
    return sorted(here - known)


def _listed(place: Table) -> list[str]:
    if place.local_path is not None and not place.local_path.is_dir():
        raise ConfigurationError(f"{place.uri} is not a folder: name one with Parquet files, or a Delta table")
    system, prefix = file_system(place)
    entries = system.get_file_info(pafs.FileSelector(prefix.rstrip("/") or "", recursive=True))
    files = [entry.path.removeprefix(prefix) for entry in entries if entry.type == pafs.FileType.File]
    # Names with such a prefix are no data, by Spark's rule.
    hidden = re.compile(r"(^|/)[_.]")
    return [name for name in files if name.endswith(".parquet") and not hidden.search(name)]


def file_rows(pipeline: Pipeline, place: Table, delta: DeltaTable | None, files: Sequence[str]) -> DataFrame:
    """Rows of `tables.ROWS`; the group is the file, the coordinate the row's number in it; folder and `delta`: see `new_files`.

    Raises:
        ConfigurationError: the files cannot be read together.
    """
    reader = pipeline.spark.read
    reader = reader.option("mergeSchema", "true") if delta is None else reader.schema(spark_schema(delta.schema()))
    try:
        rows = reader.parquet(*map(spark_path, files))
        columns = rows.columns
    except (PySparkException, Py4JJavaError) as error:
        # The innermost error of Spark's own names the file, or the column.
        said = [line.partition("SparkException: ")[2] for line in str(error).splitlines() if "SparkException: [" in line]
        raise ConfigurationError(f"the Parquet files cannot be read together: {(said or [first_line(error)])[-1]}") from None
    # A column of the files may have any name, also one of these.
    origin = rows.metadataColumn("_metadata")
    # Spark's file names have a scheme and escaped characters; `files` has neither.
    file = F.regexp_replace(F.url_decode(F.regexp_replace(origin["file_path"], r"\+", "%2B")), "^file:(//)?", "")
    number = origin["row_index"]
    if delta is not None and delta.metadata().partition_columns:
        rows = _with_partitions(pipeline, rows.withColumns({_FILE: file, _NUMBER: number}), delta, place, files)
        file = F.col(_FILE)
        number = F.col(_NUMBER)
    sent = shaped(rows, pipeline.settings.key_column, file, columns, _place=file, _kafka_offset=number)
    return sent.repartition(min(8, len(files)), "_group").sortWithinPartitions(*ORDER)


def _with_partitions(pipeline: Pipeline, rows: DataFrame, delta: DeltaTable, place: Table, files: Sequence[str]) -> DataFrame:
    """Rows with the values of a Delta table's partition columns, which its log has and its files have not."""
    names = delta.metadata().partition_columns
    actions = add_actions(delta)
    values = {name: actions.column(f"partition.{name}") for name in names}
    known = pa.table({_FILE: [f"{place.uri}/{path}" for path in paths(delta)], **values})
    known = known.filter(pc.is_in(known.column(_FILE), pa.array(files)))
    return rows.drop(*names).join(F.broadcast(pipeline.spark.createDataFrame(known)), _FILE)
