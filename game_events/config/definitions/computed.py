"""What the settings say about the game, the player and the time of a record, as workers get it.

Imports nothing that takes time: the compiler's child imports it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

#: Valid names of games: part of table names, never normalised.
GAME_PATTERN = r"^[a-z0-9][a-z0-9_]{0,62}$"
#: `gold_unified_player_agg` would otherwise be a game's table.
RESERVED_GAMES = ("unified",)
#: Names of an expression that are no decoded fields, which never begin with an underscore.
OWN_NAMES = (
    "_kafka_topic",
    "_kafka_key",
    "_kafka_timestamp",
    "_kafka_partition",
    "_kafka_offset",
    "_file_path",
    "_message_type",
)
#: The column that `header(name)` reads.
HEADERS_NAME = "_kafka_headers"
#: Stands for the message types that a mapping does not name.
OTHERS = "*"
#: What becomes of names that no game may have.
NameRule = Literal["keep", "lower", "replace"]
_NO_NAME = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True)
class Expression:
    """A parsed expression; picklable.

    Attributes:
        text: as the settings have it.
        sql: the same for DuckDB.
        names: what it reads: each a name, followed by those of nested fields if there are any.
    """

    text: str
    sql: str
    names: tuple[tuple[str, ...], ...]

    def fields(self) -> Iterator[tuple[str, ...]]:
        """The names of decoded fields in it."""
        return (name for name in self.names if not name[0].startswith("_"))


def is_name(name: str) -> bool:
    """Whether a name may be a game's."""
    return re.fullmatch(GAME_PATTERN, name) is not None and name not in RESERVED_GAMES


@dataclass(frozen=True)
class EntityNames:
    """Which game a name means; picklable.

    Attributes:
        aliases: name -> game.
        rule: for the other names that are not legal.
    """

    aliases: Mapping[str, str]
    rule: NameRule

    @cached_property
    def _ruled(self) -> Mapping[str, str]:
        """The aliases by their names as the rule has them."""
        return {self._changed(name): game for name, game in self.aliases.items()}

    def by_rule(self, name: str) -> str:
        """A name as the rule has it; one that is not legal afterwards either stays as it is."""
        ruled = name if is_name(name) else self._changed(name)
        return ruled if is_name(ruled) else name

    def _changed(self, name: str) -> str:
        if self.rule == "keep":
            return name
        return _NO_NAME.sub("_", name.lower()) if self.rule == "replace" else name.lower()

    def alias(self, name: str) -> str | None:
        """The game that an alias gives a name, as it is or as the rule has it; None: no alias does."""
        return self.aliases.get(name) or self._ruled.get(self._changed(name))

    def problem(self) -> str | None:
        """What is wrong with the aliases; None: nothing."""
        games = dict[str, tuple[str, str]]()
        for name, game in self.aliases.items():
            if not is_name(game):
                return f"{game!r} is no legal name: {GAME_PATTERN}, and not {', '.join(RESERVED_GAMES)}"
            if self.aliases.get(game, game) != game:
                return f"{name!r} is {game!r}, which is {self.aliases[game]!r}: an alias must name a game, not another alias"
            other, its_game = games.setdefault(self._changed(name), (name, game))
            if its_game != game:
                games_of = f"{its_game!r} and {game!r}"
                return f"{other!r} and {name!r} are one name by ENTITY_NAMES={self.rule}, and have two games: {games_of}"
        return None


@dataclass(frozen=True)
class Computed:
    """A column that is computed; picklable.

    Attributes:
        setting: `entity`, `key` or `time`.
        column: its name.
        expressions: message type -> expression.
    """

    setting: str
    column: str
    expressions: Mapping[str, Expression]

    def of(self, message_type: str | None) -> Expression | None:
        """The expression for a message type; None: it has its decoded value.

        By its full name, its last parts (the longest that are there, as `rules.is_named`) or `*`.
        """
        parts = (message_type or "").split(".")
        names = (*(".".join(parts[first:]) for first in range(len(parts))), OTHERS)
        return next((self.expressions[name] for name in names if name in self.expressions), None)

    @property
    def is_time(self) -> bool:
        """Whether its values are times; else texts."""
        return self.setting == "time"


@dataclass(frozen=True)
class Definitions:
    """What the settings say, if they say anything; picklable.

    Attributes:
        computed: columns with expressions.
        entity_column: column with the game's name.
        names: which game a name means; None: the one of that name.
        zone: time zone of times in texts that name none; None: they are bad values.
        marks: setting -> number of its definition; 0: the decoded field.
    """

    computed: tuple[Computed, ...]
    entity_column: str
    names: EntityNames | None
    zone: str | None
    marks: Mapping[str, int]

    def described(self) -> Iterator[tuple[str, str]]:
        """Name of a column, and how its values are made."""
        for column in self.computed:
            said = [sql.text if type_ == OTHERS else f"{type_}: {sql.text}" for type_, sql in column.expressions.items()]
            yield column.column, "; ".join(said)
        if self.names is not None:
            aliases = ", ".join(f"{name} = {game}" for name, game in self.names.aliases.items())
            rule = f"other names: {self.names.rule}" if self.names.rule != "keep" else ""
            yield f"names in {self.entity_column}", "; ".join(filter(None, (aliases, rule)))
