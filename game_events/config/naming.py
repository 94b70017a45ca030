"""Names of tables and assets: a prefix and nouns, and conversion from a table's key to its name and back.

Code uses a table's *key*, its name with the default nouns (`silver_rummy_events`); users and folders have its *name*. They
differ only where prefix or nouns were changed.
"""

import re
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from game_events.extending import PLAYER_AGG

#: Valid names of games: part of table names, never normalised.
GAME_PATTERN = r"^[a-z0-9][a-z0-9_]{0,62}$"
#: `gold_unified_player_agg` would otherwise be a game's table.
RESERVED_GAMES = ("unified",)
#: Legal for folders, SQL without quotes, and Dagster (`dagster._core.definitions.utils.VALID_NAME_REGEX`).
_NOUN = r"^[a-z][a-z0-9_]{0,99}$"
PROGRESS = "progress"
#: The pipeline's system tables: only the prefix changes their names.
OWN = (
    "schemas",
    PROGRESS,
    "event_log",
    "suppressed_entities",
    "source_files",
    "rest_outbox",
    "rest_deliveries",
    "rest_dead_letters",
)
#: Keys of the tables that are neither of an entity nor in `OWN`.
FIXED = ("bronze_events", "quarantine_events", "silver_events", f"gold_unified_{PLAYER_AGG}")
#: Beginnings of the keys that end in `_events`, and in the name of an aggregate.
_EVENT_LAYERS, _GOLD = ("bronze_", "quarantine_", "silver_"), ("gold_",)
_EVENTS = "events"


class Names(BaseModel):
    """Prefix and nouns in the names of tables and assets, and in texts.

    Attributes:
        prefix: in front of every name: pipelines with different prefixes share one root (dev and prod side by side).
        events: in `bronze_{events}`, `quarantine_{events}`, `silver_{entity}_{events}`, and the asset `silver_{events}`.
        aggregate: in `gold_{entity}_{aggregate}`, `gold_unified_{aggregate}`, and the asset `gold_{aggregate}`.
        entities: the set of Dagster's partitions; in texts: the entities.
        entity, key, keys: in texts: a game and its gamers, a site and its devices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str = Field("", pattern=r"^$|^[a-z][a-z0-9_]{0,29}$")
    events: str = Field(_EVENTS, pattern=_NOUN)
    aggregate: str = Field(PLAYER_AGG, pattern=_NOUN)
    entities: str = Field("games", pattern=_NOUN)
    entity: str = Field("game", min_length=1, max_length=30)
    key: str = Field("gamer", min_length=1, max_length=30)
    keys: str = Field("gamers", min_length=1, max_length=30)

    @property
    def silver_asset(self) -> str:
        """The asset of all silver tables, without prefix."""
        return f"silver_{self.events}"

    @property
    def gold_asset(self) -> str:
        """The asset of all gold tables of the built-in aggregate, without prefix."""
        return f"gold_{self.aggregate}"

    def asset(self, name: str) -> str:
        """An asset, or the set of partitions, with the prefix."""
        return self.prefix + name

    def name_of(self, key: str) -> str:
        """A table's name, by its key."""
        return self.prefix + _swapped(_swapped(key, _EVENT_LAYERS, _EVENTS, self.events), _GOLD, PLAYER_AGG, self.aggregate)

    def keys_of(self, names: Iterable[str]) -> list[str]:
        """Keys of the tables below a root, sorted by name: this pipeline's, and those of no pipeline.

        Without tables of pipelines with another prefix, recognised by their table `{prefix}progress`, and without tables with
        the name of another table's key.
        """
        found = {name: self._key_of(name) for name in sorted(names)}
        others = tuple(
            name.removesuffix("progress") for name, key in found.items() if key is None and name.endswith("_progress")
        )
        strange = (n for n, key in found.items() if key is None and self.name_of(n) == n and not n.startswith(others))
        mine = {name: key for name, key in found.items() if key is not None}
        return [mine.get(name, name) for name in sorted({*mine, *strange})]

    def silver_path(self) -> str:
        """Pattern of a file of a silver table, with the entity as its one group."""
        return self._path("silver", self.events)

    def gold_path(self) -> str:
        """Pattern of a file of a gold table, with the entity as its one group."""
        return self._path("gold", self.aggregate)

    def _key_of(self, name: str) -> str | None:
        """The key of a table of this pipeline; None for any other table."""
        if not name.startswith(self.prefix):
            return None
        plain = _swapped(name.removeprefix(self.prefix), _EVENT_LAYERS, self.events, _EVENTS)
        key = _swapped(plain, _GOLD, self.aggregate, PLAYER_AGG)
        # All tables with the prefix are this pipeline's; without a prefix, only those that it creates.
        ours = self.prefix or key in (*OWN, *FIXED) or re.fullmatch(rf"silver_.+_{_EVENTS}|gold_.+", key)
        return key if ours and self.name_of(key) == name else None

    def _path(self, layer: str, noun: str) -> str:
        return rf"/{self.prefix}{layer}_([a-z0-9_]+)_{noun}/[^/]+$"


def _swapped(name: str, layers: tuple[str, ...], old: str, new: str) -> str:
    """A name or key of one of the layers with another noun at its end."""
    if old == new:
        return name
    return name.removesuffix(old) + new if name.startswith(layers) and name.endswith(f"_{old}") else name
