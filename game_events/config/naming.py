"""Names of tables and assets by the templates of the setting `names`, and conversion from a table's key to its name and back.

Code uses a table's *key*, its name by the default templates (`silver_rummy_events`); users and folders have its *name*. They
differ only where the templates were changed; tables are compared by key.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from game_events.errors import ConfigurationError
from game_events.extending import PLAYER_AGG

#: Valid names of games: part of table names, never normalised.
GAME_PATTERN = r"^[a-z0-9][a-z0-9_]{0,62}$"
#: `gold_unified_player_agg` would otherwise be a game's table.
RESERVED_GAMES = ("unified",)
ENTITY, AGGREGATE = "{entity}", "{aggregate}"
#: Legal for folders, SQL without quotes, and Dagster (`dagster._core.definitions.utils.VALID_NAME_REGEX`).
NAME = r"[a-z][a-z0-9_]{0,99}"
#: The pipeline's system tables: only the prefix changes their names.
OWN = (
    "schemas",
    "progress",
    "event_log",
    "suppressed_entities",
    "source_files",
    "rest_outbox",
    "rest_deliveries",
    "rest_dead_letters",
)
#: Names that no asset can have: jobs, ops and assets with fixed names, and Dagster's `DISALLOWED_NAMES` (same module).
_TAKEN = frozenset(
    [
        *("context", "conf", "config", "meta", "arg_dict", "dict", "input_arg_dict", "output_arg_dict", "int", "str", "float"),
        *("bool", "input", "output", "type", "refresh", "replay", "redecode", "maintain", "continuous", "validate", "checks"),
        *("rules", "refresh_all_layers", "replay_quarantined_rows", "redecode_bronze", "archive", "archive_raw_records"),
        *("look_after_tables", "run_continuously", "check_everything", "rest_export", "export_new_rows", *keyword.kwlist),
    ]
)
#: Keys, by field.
_FIXED = {"bronze": "bronze_events", "quarantine": "quarantine_events", "unified": "gold_unified_player_agg"}
_SILVER_KEY, _GOLD_KEY, _OWN_GOLD_KEY = "silver_{entity}_events", "gold_{entity}_player_agg", "gold_{entity}_{aggregate}"


class Names(BaseModel):
    """Names of tables and assets, as templates.

    Attributes:
        prefix: in front of every name: pipelines with different prefixes share one root (dev and prod side by side).
        bronze, quarantine, unified: tables, and their assets.
        silver, gold: an entity's tables.
        own_gold: an entity's table of a user-defined aggregate.
        silver_asset, gold_asset, own_gold_asset: assets whose partitions are entities.
        partitions: the set of these partitions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str = ""
    bronze: str = _FIXED["bronze"]
    quarantine: str = _FIXED["quarantine"]
    silver: str = _SILVER_KEY
    gold: str = _GOLD_KEY
    unified: str = _FIXED["unified"]
    own_gold: str = _OWN_GOLD_KEY
    silver_asset: str = "silver_events"
    gold_asset: str = "gold_player_agg"
    own_gold_asset: str = "gold_{aggregate}"
    partitions: str = "games"

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if value and not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", value):
            raise ValueError("must be up to 30 lower case letters, digits and underscores, beginning with a letter")
        return value

    @field_validator("bronze", "quarantine", "unified", "silver_asset", "gold_asset", "partitions")
    @classmethod
    def _fixed(cls, value: str) -> str:
        return _legal(value)

    @field_validator("silver", "gold")
    @classmethod
    def _of_entity(cls, value: str) -> str:
        return _template(value, ENTITY)

    @field_validator("own_gold")
    @classmethod
    def _of_entity_and_aggregate(cls, value: str) -> str:
        # Otherwise the two could not be separated again.
        return _template(value, f"{ENTITY}_{AGGREGATE}")

    @field_validator("own_gold_asset")
    @classmethod
    def _of_aggregate(cls, value: str) -> str:
        return _template(value, AGGREGATE)

    @model_validator(mode="after")
    def _no_clashes(self) -> Names:
        tables = [self.bronze, self.quarantine, self.unified, *OWN]
        assets = [self.bronze, self.quarantine, self.unified, self.silver_asset, self.gold_asset]
        for kind, found in (("tables", tables), ("assets", assets)):
            twice = sorted({name for name in found if found.count(name) > 1})
            if twice:
                raise ValueError(f"two {kind} would be called {', '.join(twice)}")
        if _overlap(self.silver, self.gold):
            raise ValueError(f"silver ({self.silver}) and gold ({self.gold}) could name one table: let their beginnings differ")
        if _overlap(self.silver, self.own_gold.replace(AGGREGATE, "")):
            raise ValueError(f"silver ({self.silver}) and own_gold ({self.own_gold}) could name one table")
        for template in (self.silver, self.gold):
            for table in tables:
                of = entity_of(template, table)
                if of is not None and of not in RESERVED_GAMES:
                    raise ValueError(f"{table} could be the table {template} of an entity {of!r}: choose another name")
        return self

    def name_of(self, key: str) -> str:
        """A table's name, by its key."""
        return self.prefix + (self._plain.get(key) or self._name_of_entity(key))

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
        return self._path(self.silver)

    def gold_path(self, aggregate: str = PLAYER_AGG) -> str:
        """Pattern of a file of an aggregate's table, with the entity as its one group."""
        return self._path(self.gold if aggregate == PLAYER_AGG else self.own_gold.replace(AGGREGATE, aggregate))

    def asset(self, name: str) -> str:
        """An asset, or the set of partitions, with the prefix."""
        return self.prefix + name

    def refuse_clashes(self, aggregates: Iterable[str]) -> None:
        """Raise ConfigurationError for user-defined aggregates with the tables or assets of another one."""
        assets = {self.bronze, self.quarantine, self.unified, self.silver_asset, self.gold_asset}
        for aggregate in aggregates:
            tables = self.own_gold.replace(AGGREGATE, aggregate)
            asset = self.own_gold_asset.replace(AGGREGATE, aggregate)
            for table in (self.bronze, self.quarantine, self.unified, *OWN):
                if entity_of(tables, table) not in (None, *RESERVED_GAMES):
                    raise ConfigurationError(f"gold aggregate {aggregate}: its tables ({tables}) could be called {table}")
            if _overlap(tables, self.gold) or asset in assets:
                raise ConfigurationError(
                    f"gold aggregate {aggregate}: its tables ({tables}) or its asset ({asset}) could be those of another one: "
                    "rename it, or change GAME_EVENTS_NAMES"
                )

    @cached_property
    def _plain(self) -> dict[str, str]:
        """Key -> name without prefix, of tables that are not per entity."""
        return {key: getattr(self, field) for field, key in _FIXED.items()} | {name: name for name in OWN}

    @cached_property
    def _keys(self) -> dict[str, str]:
        return {name: key for key, name in self._plain.items()}

    def _name_of_entity(self, key: str) -> str:
        for template, mine in ((_SILVER_KEY, self.silver), (_GOLD_KEY, self.gold)):
            entity = entity_of(template, key)
            if entity is not None:
                return mine.replace(ENTITY, entity)
        rest = entity_of("gold_{entity}", key)
        return key if rest is None else self.own_gold.replace(f"{ENTITY}_{AGGREGATE}", rest)

    def _key_of(self, name: str) -> str | None:
        """The key of a table of this pipeline; None for any other table."""
        if not name.startswith(self.prefix):
            return None
        plain = name.removeprefix(self.prefix)
        # All tables with the prefix are this pipeline's; without a prefix, only those that it creates.
        found = self._keys.get(plain) or self._key_of_entity(plain) or (plain if self.prefix else None)
        # The template of user-defined aggregates may give the key of another table.
        return found if found is not None and self.name_of(found) == name else None

    def _key_of_entity(self, name: str) -> str | None:
        for mine, template in ((self.silver, _SILVER_KEY), (self.gold, _GOLD_KEY)):
            entity = entity_of(mine, name)
            if entity is not None:
                return template.replace(ENTITY, entity)
        rest = entity_of(self.own_gold.replace(f"{ENTITY}_{AGGREGATE}", ENTITY), name)
        return None if rest is None else f"gold_{rest}"

    def _path(self, template: str) -> str:
        before, _, after = template.partition(ENTITY)
        return rf"/{self.prefix}{before}([a-z0-9_]+){after}/[^/]+$"


class Words(BaseModel):
    """Display names of an entity and a key: a game and its gamers, a site and its devices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entity: str = Field("game", min_length=1, max_length=30)
    entities: str = Field("games", min_length=1, max_length=30)
    key: str = Field("gamer", min_length=1, max_length=30)
    keys: str = Field("gamers", min_length=1, max_length=30)


def _legal(name: str) -> str:
    if not re.fullmatch(NAME, name) or name in _TAKEN:
        raise ValueError(
            f"{name!r} must be lower case letters, digits and underscores, beginning with a letter, and no reserved word"
        )
    return name


def _template(value: str, placeholder: str) -> str:
    if value.count(placeholder) != 1:
        raise ValueError(f"{value!r} must contain {placeholder} once")
    _legal(value.replace(placeholder, "x") if value != placeholder else "")
    return value


def entity_of(template: str, name: str) -> str | None:
    """The entity in a name by a template; None if the name does not match."""
    before, _, after = template.partition(ENTITY)
    found = name[len(before) : len(name) - len(after)]
    return found if found and name == f"{before}{found}{after}" else None


def _overlap(one: str, other: str) -> bool:
    """Whether two templates could give the same name; also true for some that no valid entity makes equal."""
    (a, _, b), (c, _, d) = one.partition(ENTITY), other.partition(ENTITY)
    return (a.startswith(c) or c.startswith(a)) and (b.endswith(d) or d.endswith(b))
