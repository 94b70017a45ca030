"""What a run is asked to do: which layers and games it brings up to date, and which it replaces.

Words are layers, asset keys or names of tables, in any order; the run goes through the layers in their own order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from game_events.config.naming import Names
from game_events.errors import ConfigurationError
from game_events.lakehouse.layers import REFRESHED, Layer
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED, game_of_gold, game_of_silver, gold_name, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.backlog import games_waiting

#: Every layer; as a full refresh: every layer that may be replaced.
ALL = "all"


def _whole(names: Names) -> dict[str, str]:
    """Words for a whole layer. Quarantine is written in bronze's pass."""
    return {
        **{layer: layer for layer in REFRESHED},
        names.name_of(BRONZE): Layer.BRONZE,
        names.name_of(QUARANTINE): Layer.BRONZE,
        names.asset(names.silver_asset): Layer.SILVER,
        names.asset(names.gold_asset): Layer.GOLD,
        names.name_of(UNIFIED): Layer.UNIFIED,
    }


#: None: every game.
Games = frozenset[str] | None
Parts = Mapping[str, Games]


@dataclass(frozen=True)
class Selection:
    """What a run does.

    Attributes:
        update: layer -> games that are brought up to date; layers that are not in it are left alone. Aggregates of one's
            own are layers of their own, `gold:{name}`.
        full: layer -> games whose tables are replaced by everything the layer before has of them.
        notices: what a person should know about it.
    """

    update: Parts = field(default_factory=lambda: dict.fromkeys(REFRESHED))
    full: Parts = field(default_factory=dict)
    notices: tuple[str, ...] = ()


#: What a run does that is asked for nothing special.
EVERYTHING = Selection()


def selection_of(
    pipeline: Pipeline, select: Collection[str] = (), games: Collection[str] = (), full_refresh: Collection[str] = ()
) -> Selection:
    """A selection from a user's words.

    Args:
        pipeline: the parts; only names are looked up.
        select: what to bring up to date; empty: every layer.
        games: silver and gold of these games only; empty: every game.
        full_refresh: what to replace; `all`: every layer, bronze only if the setting allows it. It is part of the run
            whether it is selected or not.

    Raises:
        ConfigurationError: a name that there is not, with those that there are.
    """
    names = _Names(pipeline)
    chosen = names.games(games)
    update = names.parts("--select", select or (ALL,), chosen)
    full = names.parts("--full-refresh", full_refresh, chosen)
    notices: tuple[str, ...] = ()
    bronze = {word for word, layer in _whole(pipeline.settings.names).items() if layer == Layer.BRONZE}
    if ALL in full_refresh and not bronze & set(full_refresh):
        if chosen is not None:
            # Of these games, not of the topic and of the table over all games.
            full = {layer: found for layer, found in full.items() if layer not in (Layer.BRONZE, Layer.UNIFIED)}
        elif not pipeline.settings.allow_bronze_full_refresh:
            full = {layer: found for layer, found in full.items() if layer != Layer.BRONZE}
            notices = (
                f"{pipeline.bronze.name} is protected and was not replaced (GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH); it took "
                "new records as usual",
            )
    return Selection(_united(update, full), full, notices)


def _united(one: Parts, other: Parts) -> dict[str, Games]:
    """Both together, in the order of the layers; aggregates of one's own come last."""
    found: dict[str, Games] = {}
    for layer in (*REFRESHED, *sorted((one.keys() | other.keys()) - set(REFRESHED))):
        parts = [p[layer] for p in (one, other) if layer in p]
        if parts:
            found[layer] = None if None in parts else frozenset().union(*(p for p in parts if p is not None))
    return found


class _Names:
    """The names that there are; looked up when they are needed, once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._known: frozenset[str] | None = None

    def games(self, words: Collection[str]) -> Games:
        """Checked names of games; None if there are none."""
        unknown = sorted(set(words) - self._all_games()) if words else []
        if unknown:
            raise ConfigurationError(f"--games: there is no {', '.join(map(repr, unknown))}; {self._what_games()}")
        return frozenset(words) or None

    def parts(self, option: str, words: Collection[str], games: Games) -> dict[str, Games]:
        """Layer -> games, of some words."""
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
        whole = _whole(called) | {a.asset: a.layer for a in own}
        if word in whole:
            return [(whole[word], None)]
        key = self._pipeline.lakehouse.key(word)
        tables = [(Layer.SILVER, game_of_silver(key)), (Layer.GOLD, game_of_gold(key))]
        for layer, game in (*tables, *((a.layer, game_of_gold(key, a.name)) for a in own)):
            if game is not None and game in self._all_games():
                return [(layer, frozenset({game}))]
        raise ConfigurationError(
            f"{option}: there is no {word!r}. There are the layers {', '.join(REFRESHED)} (or {ALL}), the assets "
            f"{', '.join(name for name in whole if name not in REFRESHED)}, and the tables {', '.join(self._templates())}; "
            f"{self._what_games()}"
        )

    def _templates(self) -> Iterable[str]:
        """Tables of a game, one of each kind."""
        called, game = self._pipeline.settings.names, f"{{{self._pipeline.settings.names.entity}}}"
        own = (gold_name(game, a.name) for a in self._pipeline.extensions.aggregates)
        return [called.name_of(key) for key in (silver_name(game), gold_name(game), *own)]

    def _all_games(self) -> frozenset[str]:
        """Games with tables, games of the allow list, and names in bronze that have no table yet."""
        if self._known is None:
            allowed = frozenset(self._pipeline.settings.games)
            found = frozenset(self._pipeline.lakehouse.games()) | games_waiting(self._pipeline).keys() | allowed
            self._known = found & allowed if allowed else found
        return self._known

    def _what_games(self) -> str:
        games = sorted(self._all_games())
        return f"games: {', '.join(games)}" if games else "there are no games yet: the first run finds them"
