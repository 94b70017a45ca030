"""Admission of new games: which new names in bronze's rows get tables; and which rows silver owes.

Guarantee: with any number of names and rows, no more tables, folders and files are made than the settings have room for. Rows
of other names stay in bronze, are counted, and are read again once there is room.

Above silver's low watermark rows are due because they are new. Below it they are due if the settings left out their names when
they were new, and let them in now: an allow list that became longer, a limit that was raised. `Progress.left_out` says in which
batches there may be such rows and by which settings, so nothing is read while no setting lets in more names than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config.definitions.computed import GAME_PATTERN, RESERVED_GAMES
from game_events.config.settings import Settings
from game_events.lakehouse.commits.group import for_games
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, games_of
from game_events.lakehouse.data.columns import has_decoded_columns
from game_events.lakehouse.data.reading import files_with, read_parts, row_count, selection
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.system_tables import Admission, LeftOut, Progress
from game_events.lakehouse.tables import Layer, is_game
from game_events.pipeline.context import Pipeline
from game_events.pipeline.silver.stage import SilverInput, Staging
from game_events.workers.fanout import INVALID, NO_NAME, OVER_LIMIT, Routing


def most_games(settings: Settings) -> int:
    """Upper bound of the number of games."""
    return max(settings.max_games, settings.max_games_ever)


def admit(settings: Settings, known: set[str], rows_by_new_game: dict[str, int]) -> tuple[set[str], dict[str, int]]:
    """Admit new names: those of the allow list always, others up to `max_games`, after that those with enough rows.

    So a flood of invented names with few rows each cannot keep out a real game; a flood with many rows each ends at
    `most_games`, after which only names of the allow list are admitted. Returns the new games, and refused name -> rows.
    """
    admitted: set[str] = set()
    refused: dict[str, int] = {}
    for name, rows in sorted(rows_by_new_game.items(), key=lambda item: (-item[1], item[0])):
        games = len(known) + len(admitted)
        enough = rows >= settings.new_game_min_rows and games < most_games(settings)
        if name in settings.games or games < settings.max_games or enough:
            admitted.add(name)
        else:
            refused[name] = rows
    return admitted, refused


def is_allowed(pipeline: Pipeline, game: str) -> bool:
    """Whether a game has a valid name that is in the allow list, if there is one."""
    return Routing.of(pipeline.settings).refusal(game) is None


def is_valid(name: Column, reserved: str | None = None) -> Column:
    """`tables.is_game` as a column; `reserved`: as in `Routing`."""
    text = name.cast("string")  # callers leave out names that are no texts
    valid = text.rlike(rf"\A{GAME_PATTERN[1:-1]}\z") & ~text.isin(*RESERVED_GAMES)
    return valid if reserved is None else valid & ~text.contains(reserved)


def counted_routing(work: Staging, known: set[str]) -> tuple[Routing, Counter[str]]:
    """Which names get files, decided by a count of the rows to stage; and the rows of the other names, by reason."""
    pipeline = work.source.pipeline
    listed = set(games_of(pipeline.lakehouse)) - known
    # An object store also lists the folder of a first write that was never committed.
    of_one = [game for game in listed if not pipeline.lakehouse.is_partitioned]
    there = dict.fromkeys(listed, True) | for_games(of_one, lambda game: pipeline.lakehouse.silver(game).exists())
    known = known | {game for game in listed if there[game]}
    names, others = _new_names(work, known)
    admitted, _ = admit(pipeline.settings, known, names)
    others[OVER_LIMIT] -= sum(names[game] for game in admitted)
    return Routing(only=frozenset(known | admitted)), +others


def _new_names(work: Staging, known: set[str]) -> tuple[dict[str, int], Counter[str]]:
    """Rows of the most frequent new names, as many as can be admitted; and the rows of all new names, by reason."""
    settings = work.source.pipeline.settings
    spark = work.source.pipeline.spark
    games = spark.createDataFrame(pa.table({"_game": pa.array(sorted(known), pa.string())}), "_game string")
    name = F.col("name")
    new = work.names().join(F.broadcast(games), name == F.col("_game"), "left_anti")
    valid = F.coalesce(is_valid(name, Routing.of(settings).reserved), F.lit(False))
    # The driver collects no more names than that.
    places = max(0, most_games(settings) - len(known))
    first = new.where(valid).orderBy(F.desc("rows"), "name").limit(places).collect()
    why = F.when(valid, OVER_LIMIT).when(name.isNull(), NO_NAME if settings.message_types else INVALID)
    sums = new.groupBy(why.otherwise(INVALID).alias("why")).agg(F.sum("rows").alias("rows")).collect()
    return {r["name"]: int(r["rows"]) for r in first if is_game(r["name"])}, Counter({r["why"]: int(r["rows"]) for r in sums})


def new_games(pipeline: Pipeline, above: int | None = None) -> list[str]:
    """Names in bronze above a batch (None: the low watermark) that are no games yet and would be admitted, by name."""
    handle = pipeline.open_bronze()
    if handle is None or not row_count(handle) or not has_decoded_columns(handle):
        return []
    source = SilverInput.of(pipeline, handle)
    state = pipeline.progress.read(source.bronze.key)
    floor = state.floor(Layer.SILVER) if above is None else above
    uris = files_with(handle, floor)
    if not uris:
        return []
    # Read first: PySpark's columns need a session, and this may be its first use.
    rows = read_files(pipeline.spark, uris, spark_schema(handle.schema()))
    settings = pipeline.settings
    known = set(state.games)
    name = F.col(settings.entity_column)
    later = rows.where((F.col("_batch") > floor) & is_valid(name, Routing.of(settings).reserved))  # a file may have others
    rows = later.select(name.alias("game"))
    if settings.games:
        rows = rows.where(F.col("game").isin(*settings.games))
    most = len(known) + (len(settings.games) or most_games(settings))
    counted = rows.groupBy("game").agg(F.count(F.lit(1)).alias("rows")).orderBy(F.desc("rows"), "game").limit(most).collect()
    new = {r["game"]: int(r["rows"]) for r in counted if is_game(r["game"]) and r["game"] not in known}
    admitted, _ = admit(settings, known, new)
    return sorted(admitted)


#: Names that are counted at a time: of more, those with fewest rows are forgotten, and stay left out.
MOST_NAMES = 1_000_000

#: After every batch.
NEVER = 2**63 - 1


@dataclass(frozen=True)
class Due:
    """What the next run over everything adds to silver.

    Attributes:
        new: game -> rows above the low watermark. Names that there is no room for are not left out here.
        readmitted: game -> rows below it, of names that the settings left out until now.
        left_out: where rows stay left out by the settings of now.
        failed: game -> why silver retries it, whatever rows it has.
        held: games that silver would retry, if the allow list had them.
    """

    new: Counter[str] = field(default_factory=Counter)
    readmitted: Counter[str] = field(default_factory=Counter)
    left_out: LeftOut = field(default_factory=LeftOut)
    failed: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    @property
    def rows(self) -> Counter[str]:
        """Game -> rows that wait."""
        return self.new + self.readmitted


def due(pipeline: Pipeline) -> Due:
    """What silver owes now; one column of bronze is read, without Spark. LostFileError, OSError: a file cannot be read."""
    bronze = pipeline.open_bronze()
    if bronze is None or not counter(bronze, Txn.BATCH):
        return Due()
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    floor = state.floor(Layer.SILVER)
    routing = Routing.of(pipeline.settings)

    def above(name: object) -> int:
        return max(floor, state.games.get(str(name), 0)) if routing.refusal(name) is None else NEVER

    new = Counter[str]()
    for part in _parts(pipeline, bronze, floor):
        new.update(part.counts(part.later_than(above)))
    readmitted, left_out = readmitted_rows(pipeline, bronze, state)
    held = state.held(Admission.of(pipeline.settings))
    failed = {game: why for (layer, game), why in state.failed.items() if layer == Layer.SILVER and game not in held}
    return Due(new, readmitted, left_out, failed, frozenset(held))


def readmitted_rows(pipeline: Pipeline, bronze: DeltaTable, state: Progress) -> tuple[Counter[str], LeftOut]:
    """Game -> rows that settings left out before and let in now; and what stays left out.

    Bronze is read only if the settings let in more names than those by which rows were left out.
    """
    settings = pipeline.settings
    left = state.left_out
    now = Admission.of(settings)
    if left.covers(now):
        return Counter(), left
    let_in_rows, stays = _let_in_rows(pipeline, bronze, state)
    known = {*state.games, *state.failed_in(Layer.SILVER)}
    _, refused = admit(settings, known, {name: rows for name, rows in let_in_rows.items() if name not in known})
    readmitted = Counter({name: rows for name, rows in let_in_rows.items() if name not in refused})
    first = left.first if refused else stays
    if first == NEVER:
        return readmitted, LeftOut()
    return readmitted, LeftOut(first, left.last, _both_lists(left.by, now))


def _let_in_rows(pipeline: Pipeline, bronze: DeltaTable, state: Progress) -> tuple[Counter[str], int]:
    """Name -> rows that were left out, of names that the settings let in; and the first batch with such rows of other names."""
    left = state.left_out
    routing = Routing.of(pipeline.settings)
    listed = state.failed_in(Layer.SILVER)

    def above(name: object) -> int:
        allowed = is_game(name) and name not in listed and routing.refusal(name) != INVALID
        return max(left.first - 1, state.games.get(str(name), 0)) if allowed else NEVER

    let_in_rows = Counter[str]()
    stays = NEVER
    for part in _parts(pipeline, bronze, left.first - 1, left.last):
        lacking = pc.and_(part.later_than(above), pc.less_equal(part.batches, left.last))
        let_in = part.of_each(lambda name: routing.refusal(name) is None, pa.bool_())
        let_in_rows.update(part.counts(pc.and_(lacking, let_in)))
        others = part.batches.filter(pc.and_(lacking, pc.invert(let_in)))
        stays = min(stays, pc.min(others).as_py() if len(others) else NEVER)
        if len(let_in_rows) > MOST_NAMES:
            kept = {name: rows for name, rows in let_in_rows.items() if name in state.games}
            let_in_rows = Counter(dict(let_in_rows.most_common(MOST_NAMES // 2)) | kept)
    return let_in_rows, stays


def _both_lists(before: Admission | None, now: Admission) -> Admission:
    """What lets in no name of the rows that stay left out: neither did the earlier lists, so two in turn end the search."""
    return Admission(before.games | now.games) if before is not None and before.games and now.games else now


@dataclass(frozen=True)
class _Part:
    """Rows of bronze: the names that occur, and of each row the number of its name (NULL without one) and its batch."""

    names: list[object]
    numbers: pa.Array
    batches: pa.Array

    def of_each(self, value: Callable[[object], object], kind: pa.DataType) -> pa.Array:
        """A value of each row's name; NULL without one."""
        return pa.array([value(name) for name in self.names], kind).take(self.numbers)

    def later_than(self, above: Callable[[object], int]) -> pa.Array:
        """Mask of the rows of later batches than their name's."""
        return pc.fill_null(pc.greater(self.batches, self.of_each(above, pa.int64())), False)

    def counts(self, mask: pa.Array) -> dict[str, int]:
        """Name -> rows of a mask."""
        counts = pc.value_counts(self.numbers.filter(mask))
        return {str(self.names[entry["values"]]): entry["counts"] for entry in counts.to_pylist()}


def _parts(pipeline: Pipeline, bronze: DeltaTable, above: int, last: int = NEVER) -> Iterator[_Part]:
    """The rows of bronze's files that may hold batches above one and up to another; none if the names are no texts."""
    entity = pipeline.settings.entity_column
    wanted = pa.schema([f for f in pa.schema(bronze.schema()) if f.name in (entity, "_batch")])
    if entity not in wanted.names or not pa.types.is_string(wanted.field(entity).type):
        return
    files = selection(bronze, above)
    files = replace(files, data=tuple(f for f in files.data if f.lowest_batch is None or f.lowest_batch <= last))
    for rows in read_parts(pipeline.bronze, wanted, files.paths):
        names = rows.column(entity).combine_chunks().dictionary_encode()
        yield _Part(names.dictionary.to_pylist(), names.indices, rows.column("_batch").combine_chunks())
