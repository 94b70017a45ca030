"""Selection of the layers and games that a run refreshes, and of those that it replaces.

Names are layers, asset keys or tables, in any order; the run keeps the order of the layers.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from game_events.config.naming import Names
from game_events.errors import ConfigurationError
from game_events.lakehouse.layers import REFRESHED, Layer
from game_events.lakehouse.tables import (
    BRONZE,
    QUARANTINE,
    UNIFIED,
    game_of_gold,
    game_of_silver,
    gold_name,
    gold_of_all,
    silver_name,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.silver.due import due

#: Every layer; as a full refresh: every layer that may be replaced.
ALL = "all"


def _whole(names: Names, *, partitioned: bool = False) -> dict[str, str]:
    """Names of a whole layer. Quarantine is written together with bronze; if games share their tables, unified is gold."""
    return {
        **{layer: layer for layer in REFRESHED},
        names.name_of(BRONZE): Layer.BRONZE,
        names.name_of(QUARANTINE): Layer.BRONZE,
        names.asset(names.silver_asset): Layer.SILVER,
        names.asset(names.gold_asset): Layer.GOLD,
        names.name_of(UNIFIED): Layer.GOLD if partitioned else Layer.UNIFIED,
    }


#: None: every game.
Games = frozenset[str] | None
Parts = Mapping[str, Games]


@dataclass(frozen=True)
class Selection:
    """Layers and games of a run.

    `update`: layer -> games to refresh; a custom aggregate is a layer `gold:{name}`. `full`: layer -> games with tables to
    replace from the layer before. `everything`: the user has left out no layer and no game, so the run also refreshes what
    `update` does not name (custom aggregates), and searches all tables.
    """

    update: Parts = field(default_factory=lambda: dict.fromkeys(REFRESHED))
    full: Parts = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    everything: bool = False


#: The default.
EVERYTHING = Selection(everything=True)


def selection_of(
    pipeline: Pipeline, select: Collection[str] = (), games: Collection[str] = (), full_refresh: Collection[str] = ()
) -> Selection:
    """A selection from the user's options.

    `select`: names to refresh; empty: every layer. `games`: silver and gold of these games only; empty: every game.
    `full_refresh`: names to replace, selected or not; `all`: every layer, bronze only if the setting allows it.

    Raises:
        ConfigurationError: an unknown name; the text lists the known ones.
    """
    names = _Names(pipeline)
    chosen = names.games(games)
    update = names.parts("--select", select or (ALL,), chosen)
    full = names.parts("--full-refresh", full_refresh, chosen)
    notices: tuple[str, ...] = ()
    bronze = {word for word, layer in _whole(pipeline.settings.names).items() if layer == Layer.BRONZE}
    if ALL in full_refresh and not bronze & set(full_refresh):
        if chosen is not None:
            # Bronze and the unified table hold all games.
            full = {layer: found for layer, found in full.items() if layer not in (Layer.BRONZE, Layer.UNIFIED)}
        elif not pipeline.settings.allow_bronze_full_refresh:
            full = {layer: found for layer, found in full.items() if layer != Layer.BRONZE}
            notices = (
                f"{pipeline.bronze.name} is protected and was not replaced (GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH); it took "
                "new records as usual",
            )
    return Selection(_united(update, full), full, notices, everything=chosen is None and (not select or ALL in select))


def _united(one: Parts, other: Parts) -> dict[str, Games]:
    """Union, in the order of the layers; custom aggregates last."""
    found: dict[str, Games] = {}
    for layer in (*REFRESHED, *sorted((one.keys() | other.keys()) - set(REFRESHED))):
        parts = [p[layer] for p in (one, other) if layer in p]
        if parts:
            found[layer] = None if None in parts else frozenset().union(*(p for p in parts if p is not None))
    return found


class _Names:
    """The known names."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def games(self, words: Collection[str]) -> Games:
        """Validated names of games; None if there are none."""
        unknown = sorted(set(words) - self._all_games) if words else []
        if unknown:
            raise ConfigurationError(f"--games: there is no {', '.join(map(repr, unknown))}; {self._what_games()}")
        return frozenset(words) or None

    def parts(self, option: str, words: Collection[str], games: Games) -> dict[str, Games]:
        """Layer -> games of some names."""
        found: dict[str, Games] = {}
        for word in words:
            for layer, of in self._meaning(option, word):
                narrowed = of
                if games is not None and layer not in (Layer.BRONZE, Layer.UNIFIED):
                    narrowed = games if of is None else of & games
                    if not narrowed:
                        raise ConfigurationError(f"{option}: {word} is of none of the games of --games: name it there too")
                found = _united(found, {layer: narrowed})
        return found

    def _meaning(self, option: str, word: str) -> Iterable[tuple[str, Games]]:
        own = self._pipeline.extensions.aggregates
        if word in (ALL, Layer.GOLD):
            return [(layer, None) for layer in (*(REFRESHED if word == ALL else [Layer.GOLD]), *(a.layer for a in own))]
        called = self._pipeline.settings.names
        partitioned = self._pipeline.lakehouse.is_partitioned
        whole = _whole(called, partitioned=partitioned) | {a.asset: a.layer for a in own}
        if partitioned:
            whole |= {called.name_of(gold_of_all(a.name)): a.layer for a in own}
        if word in whole:
            return [(whole[word], None)]
        key = self._pipeline.lakehouse.key(word)
        tables = [(Layer.SILVER, game_of_silver(key)), (Layer.GOLD, game_of_gold(key))]
        for layer, game in (*tables, *((a.layer, game_of_gold(key, a.name)) for a in own)):
            if game is not None and game in self._all_games:
                return [(layer, frozenset({game}))]
        template = f"{{{called.entity}}}"
        keys = (silver_name(template), gold_name(template), *(gold_name(template, a.name) for a in own))
        raise ConfigurationError(
            f"{option}: there is no {word!r}. There are the layers {', '.join(REFRESHED)} (or {ALL}), the assets "
            f"{', '.join(name for name in whole if name not in REFRESHED)}, and the tables "
            f"{', '.join(map(called.name_of, keys))}; {self._what_games()}"
        )

    @cached_property
    def _all_games(self) -> frozenset[str]:
        """Games with tables, games of the allow list, and names in bronze without a table."""
        allowed = frozenset(self._pipeline.settings.games)
        found = frozenset(self._pipeline.lakehouse.games()) | due(self._pipeline).rows.keys() | allowed
        return found & allowed if allowed else found

    def _what_games(self) -> str:
        games = sorted(self._all_games)
        return f"games: {', '.join(games)}" if games else "there are no games yet: the first run finds them"
