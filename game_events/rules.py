"""Expectations: rules that rows of silver and gold have to satisfy, declared once, in Python or in the settings' YAML.

And which rows of silver are the same event, sent twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from game_events.errors import ConfigurationError

RuleLayer = Literal["silver", "gold"]
Action = Literal["warn", "drop", "quarantine", "fail"]
#: What a rule may be called. Reasons of rows that do not decode are in capitals, so the two cannot be mistaken.
RULE_NAME = r"^[a-z][a-z0-9_]{0,62}$"


class Rule(BaseModel):
    """One expectation; a row violates it if `sql` is FALSE, NULL or an error.

    Attributes:
        name: unique in its layer; the reason of the rows it rejects.
        sql: a condition over one row's columns, in Spark SQL.
        description: its meaning.
        layer: rows of silver (events) or of gold (aggregates).
        games: only rows of these games; empty: every game.
        types: of silver: only rows of these message types, by their full names or the last parts of these; empty: every type.
        action: warn: counted. drop: left out of the table and counted. quarantine: left out and kept in `quarantine_events`.
            fail: one such row, and nothing is committed to the game's table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=RULE_NAME)
    sql: str = Field(min_length=1, max_length=10_000)
    description: str = ""
    layer: RuleLayer = "silver"
    games: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    action: Action = "warn"

    @field_validator("layer", mode="before")
    @classmethod
    def _not_bronze(cls, value: object) -> object:
        if value == "bronze":
            raise ValueError(
                "bronze holds every record that can be decoded, whatever is in it: a rule of the layer silver without games "
                "sees every game's rows"
            )
        return value

    @model_validator(mode="after")
    def _gold_keeps_its_rows(self) -> Rule:
        if self.layer == "gold" and self.action in ("drop", "quarantine"):
            raise ValueError(
                f"a rule of gold can warn or fail, not {self.action}: without a row gold would not equal its recompute from "
                "silver. Reject the events instead, by a rule of silver"
            )
        return self

    @model_validator(mode="after")
    def _gold_has_no_types(self) -> Rule:
        if self.layer == "gold" and self.types:
            raise ValueError("a rule of gold has no types: its rows are of all. GOLD_COLUMNS may count rows of one type")
        return self

    def applies_to(self, game: str) -> bool:
        """Whether the rule is checked for a game."""
        return not self.games or game in self.games


def require_unique(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules, unchanged; ValueError for a name that is used twice in a layer."""
    twice = [f"{layer}.{name}" for (layer, name), n in Counter((r.layer, r.name) for r in rules).items() if n > 1]
    if twice:
        raise ValueError(f"rules with the same layer and name: {', '.join(sorted(twice))}")
    return rules


def all_rules(settings: Iterable[Rule], modules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules of the settings and those that modules list as `RULES`; ConfigurationError for a name twice in its layer."""
    try:
        return require_unique((*settings, *modules))
    except ValueError as error:
        raise ConfigurationError(f"{error} (GAME_EVENTS_RULES and the modules of GAME_EVENTS_EXTENSIONS together)") from None


def is_named(full_name: str, name: str) -> bool:
    """Whether a name that a user has written, with or without its first parts, means a message type."""
    return full_name == name or full_name.endswith(f".{name}")


def have_common_types(names: Collection[str], others: Collection[str]) -> bool:
    """Whether a message type may be meant by names of both; none: every type."""
    return not names or not others or any(is_named(n, o) or is_named(o, n) for n in names for o in others)


US_PER_HOUR = 3_600_000_000
#: Hours of a hundred years.
MOST_HOURS = 876_600


class Deduplicate(BaseModel):
    """Which rows are the same event: of these the first one, in bronze's order, is in silver, the others are counted.

    A row is left out if an earlier row that is in silver, of the same game and the same entry, has the same values in all
    columns of the key, and a time at most the window before or after its own. A row without one of these values, or without a
    time, is never left out.

    Attributes:
        key: columns of bronze that tell events from each other.
        window_h: hours.
        of: which time: event: `TIME_COLUMN`; arrival: the record's, `_kafka_timestamp`.
        games: only rows of these games; empty: every game.
        types: only rows of these message types, by their full names or the last parts of these; empty: every type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: tuple[str, ...] = Field(min_length=1)
    window_h: float = Field(gt=0, le=MOST_HOURS)
    of: Literal["event", "arrival"] = "event"
    games: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @field_validator("key")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("must hold each column once")
        return value

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return round(self.window_h * US_PER_HOUR)

    def applies_to(self, game: str) -> bool:
        """Whether rows of a game may be left out."""
        return not self.games or game in self.games

    def overlaps(self, other: Deduplicate) -> bool:
        """Whether a row may belong to both."""
        of_games = not self.games or not other.games or not set(self.games).isdisjoint(other.games)
        return of_games and have_common_types(self.types, other.types)

    def __str__(self) -> str:
        """What is one event, in words."""
        time = "event time" if self.of == "event" else "arrival"
        of = [f"of {', '.join(names)}" for names in (self.games, self.types) if names]
        return " ".join([f"one {' + '.join(self.key)} within {self.window_h:g} h of {time}", *of])


def require_apart(entries: tuple[Deduplicate, ...]) -> tuple[Deduplicate, ...]:
    """The entries, unchanged; ValueError if a row may belong to two of them."""
    for (n, one), (m, other) in combinations(enumerate(entries, start=1), 2):
        if one.overlaps(other):
            raise ValueError(f"entries {n} and {m} are for the same rows: name other games or types in each")
    return entries
