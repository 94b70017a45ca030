"""Which transformations rows get, where some name message types: each group of rows is a branch of the plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.extending import SilverTransformation
from game_events.rules import is_named
from game_events.spark.schemas import of_types, quoted


def by_game_and_type(
    transformations: Sequence[SilverTransformation], entity: str
) -> Iterator[tuple[Sequence[SilverTransformation], Column]]:
    """The transformations of each group of rows, and which rows these are: by game and message type; each row is in one.

    A row belongs to the longest name of a type that it has, with all transformations that name a part of it.
    """
    games = sorted({game for transformation in transformations for game in transformation.games})
    types = sorted({name for transformation in transformations for name in transformation.types})
    name = F.col(quoted(entity))
    of_game = {game: F.coalesce(name == game, F.lit(False)) for game in games}
    of_other_games = ~F.coalesce(name.isin(games), F.lit(False)) if games else F.lit(True)
    groups = defaultdict[tuple[SilverTransformation, ...], list[Column]](list)
    for message_type in (*types, None):
        longer = [other for other in types if message_type is None or other.endswith(f".{message_type}")]
        of_type = of_types([message_type]) if message_type is not None else F.lit(True)
        of_type = of_type & ~of_types(longer) if longer else of_type
        for game in (*games, None):
            chosen = tuple(t for t in transformations if _has(t.games, game) and _has_type(t, message_type))
            groups[chosen].append(of_type & (of_other_games if game is None else of_game[game]))
    for chosen, conditions in groups.items():
        yield chosen, reduce(Column.__or__, conditions)


def _has(games: Collection[str], game: str | None) -> bool:
    """Whether a transformation of these games is one of a game; None: of any that no transformation names."""
    return not games or game in games


def _has_type(transformation: SilverTransformation, message_type: str | None) -> bool:
    names = transformation.types
    return not names or (message_type is not None and any(is_named(message_type, name) for name in names))
