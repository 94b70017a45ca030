"""Which new names of bronze's rows become games: where there are many, decided before a file is written for any of them.

Guarantee: however many names there are, and however many rows each, no more tables, folders and files are made than the
settings have room for. Rows of the others stay in bronze, are counted, and come once there is room.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config.naming import GAME_PATTERN, RESERVED_GAMES
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.tables import is_game
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.routing import INVALID, NO_NAME, OVER_LIMIT, Routing, admit, most_games
from game_events.pipeline.silver.stage import Staging


def is_valid(name: Column) -> Column:
    """Whether a name may become a game, as `tables.is_game` has it."""
    text = name.cast("string")  # whatever kind the column has; what is no text is left out by those who ask
    return text.rlike(rf"\A{GAME_PATTERN[1:-1]}\z") & ~text.isin(*RESERVED_GAMES)


def routing(pipeline: Pipeline, known: set[str]) -> Routing:
    """Which names get files, while there is room: a worker that meets more new ones gives up."""
    settings = pipeline.settings
    unnamed = NO_NAME if settings.message_types else INVALID
    if settings.games:
        return Routing(frozenset(settings.games), unnamed=unnamed)
    return Routing(unnamed=unnamed, known=frozenset(known), room=max(0, settings.max_games - len(known)))


def counted_routing(work: Staging, known: set[str]) -> tuple[Routing, Counter[str]]:
    """Which names get files, by a count of the rows to be staged, and the rows of all the others by why."""
    pipeline = work.source.pipeline
    listed = set(pipeline.lakehouse.games()) - known
    # In an object store the folder of a first write that was never committed is listed, too.
    there = for_games(listed, lambda game: pipeline.lakehouse.silver(game).exists())
    known = known | {game for game in listed if there[game]}
    names, others = _new_names(work, known)
    admitted, _ = admit(pipeline.settings, known, names)
    others[OVER_LIMIT] -= sum(names[game] for game in admitted)
    return Routing(only=frozenset(known | admitted)), +others


def _new_names(work: Staging, known: set[str]) -> tuple[dict[str, int], Counter[str]]:
    """Rows of the names that are no game yet, of no more than could be let in; and the rows of all such names by why."""
    settings, spark = work.source.pipeline.settings, work.source.pipeline.spark
    games = spark.createDataFrame(pa.table({"_game": pa.array(sorted(known), pa.string())}), "_game string")
    name = F.col("name")
    new = work.names().join(F.broadcast(games), name == F.col("_game"), "left_anti")
    valid = F.coalesce(is_valid(name), F.lit(False))
    # A flood of names stays in the workers.
    places = max(0, most_games(settings) - len(known))
    first = new.where(valid).orderBy(F.desc("rows"), "name").limit(places).collect()
    why = F.when(valid, OVER_LIMIT).when(name.isNull(), NO_NAME if settings.message_types else INVALID)
    sums = new.groupBy(why.otherwise(INVALID).alias("why")).agg(F.sum("rows").alias("rows")).collect()
    return {r["name"]: int(r["rows"]) for r in first if is_game(r["name"])}, Counter({r["why"]: int(r["rows"]) for r in sums})
