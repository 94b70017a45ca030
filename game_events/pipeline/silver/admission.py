"""Admission of new games: which new names in bronze's rows get tables.

Guarantee: with any number of names and rows, no more tables, folders and files are made than the settings have room for. Rows
of other names stay in bronze, are counted, and are read again once there is room.
"""

from collections import Counter

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config.naming import GAME_PATTERN, RESERVED_GAMES
from game_events.config.settings import Settings
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.data.snapshot import files_with, row_count
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import is_game
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.routing import INVALID, NO_NAME, OVER_LIMIT, Routing
from game_events.pipeline.silver.source import SilverInput
from game_events.pipeline.silver.stage import Staging


def most_games(settings: Settings) -> int:
    """Upper bound of the number of games."""
    return max(settings.max_games, settings.max_games_ever)


def admit(settings: Settings, known: set[str], rows_by_new_game: dict[str, int]) -> tuple[set[str], dict[str, int]]:
    """Admit new names: those of the allow list always, others up to `max_games`, after that those with enough rows.

    So a flood of invented names with few rows each cannot keep out a real game; a flood with many rows each ends at
    `most_games`, after which only names of the allow list are admitted.

    Returns:
        the new games, and refused name -> rows.
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
    return Routing(frozenset(pipeline.settings.games)).refusal(game) is None


def is_valid(name: Column) -> Column:
    """`tables.is_game` as a column."""
    text = name.cast("string")  # callers leave out names that are no texts
    return text.rlike(rf"\A{GAME_PATTERN[1:-1]}\z") & ~text.isin(*RESERVED_GAMES)


def counted_routing(work: Staging, known: set[str]) -> tuple[Routing, Counter[str]]:
    """Which names get files, decided by a count of the rows to stage; and the rows of the other names, by reason."""
    pipeline = work.source.pipeline
    listed = set(pipeline.lakehouse.games()) - known
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
    settings, spark = work.source.pipeline.settings, work.source.pipeline.spark
    games = spark.createDataFrame(pa.table({"_game": pa.array(sorted(known), pa.string())}), "_game string")
    name = F.col("name")
    new = work.names().join(F.broadcast(games), name == F.col("_game"), "left_anti")
    valid = F.coalesce(is_valid(name), F.lit(False))
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
    uris = files_with(handle, state.floor(Layer.SILVER) if above is None else above)
    if not uris:
        return []
    # Read first: PySpark's columns need a session, and this may be its first use.
    rows = read_files(pipeline.spark, uris, spark_schema(handle.schema()))
    settings, known = pipeline.settings, set(state.games)
    rows = rows.select(F.col(settings.entity_column).alias("game")).where(is_valid(F.col("game")))
    if settings.games:
        rows = rows.where(F.col("game").isin(*settings.games))
    most = len(known) + (len(settings.games) or most_games(settings))
    counted = rows.groupBy("game").agg(F.count(F.lit(1)).alias("rows")).orderBy(F.desc("rows"), "game").limit(most).collect()
    admitted, _ = admit(settings, known, {r["game"]: int(r["rows"]) for r in counted if r["game"] not in known})
    return sorted(admitted)
