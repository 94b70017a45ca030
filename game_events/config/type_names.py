"""Names of the tables that message types have of their own (`SILVER_PER=entity_and_type`).

A type's name in the names of tables is a pure function of its full name and of the settings: it depends neither on the order
in which types arrive nor on what tables there are. Between game and type are two underscores, `silver_rummy__paid_events`: with
one, game `a` with type `b_c`, game `a_b` with type `c`, and game `a_b_c` would have one table.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from game_events.errors import ConfigurationError

#: Between game and type in the names of tables. No game has it in its name while there are tables for each type.
SEPARATOR = "__"

#: Between a game and one of its message types, in what code calls silver's tables: `rummy`, and `rummy:level_start`, a table
#: with the rows of that type alone. Neither has one in its name; in the names of folders it is `SEPARATOR`.
TYPE_MARK = ":"


def of_type(game: str, message_type: str | None) -> str:
    """What a table of silver is called: a game's own, or that of one of its message types."""
    return game if message_type is None else f"{game}{TYPE_MARK}{message_type}"


def game_of(name: str) -> str:
    """The game of a table of silver, by what it is called (`of_type`)."""
    return name.partition(TYPE_MARK)[0]


def type_of(name: str) -> str | None:
    """The message type that a table of silver has alone; None: it is the game's own."""
    return name.partition(TYPE_MARK)[2] or None


#: Characters of a type's name at most: of a longer one the first ones, and a digest of the full name.
LONGEST = 40
_DIGEST_CHARS = 8

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
#: Where a word ends: `HTTPCall` is `http_call`, `LevelStart` is `level_start`.
_WORDS = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")
_OTHERS = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=10_000)
def type_name(full_name: str, parts: int = 1) -> str:
    """The last parts of a message type's full name in lower case, with letters, digits and single underscores alone."""
    words = "_".join(parts_of(full_name)[-parts:])
    plain = _OTHERS.sub("_", _WORDS.sub("_", words).lower()).strip("_")
    if plain and len(plain) <= LONGEST:
        return plain
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: LONGEST - _DIGEST_CHARS - 1].rstrip('_') or 'type'}_{digest}"


def parts_of(full_name: str) -> list[str]:
    """`a.b.C` as parts; a title of a JSON schema, which may be any text, is one."""
    return full_name.split(".") if _DOTTED.fullmatch(full_name) else [full_name]


@dataclass(frozen=True)
class TypeTables:
    """Which message types have tables of their own; picklable.

    `listed`: full names of these types; empty: all types have one.
    """

    listed: tuple[str, ...] = ()

    def name(self, full_name: str | None) -> str | None:
        """A type's name in the names of tables; None: its rows are in the game's own table."""
        if full_name is None:
            return None
        return self.names.get(full_name) if self.listed else type_name(full_name)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Full name -> name, of the listed types: with as many parts as tell them apart."""
        return _told_apart(self.listed)

    @property
    def definition(self) -> str:
        """What decides where a row is; without a slash."""
        if not self.listed:
            return "all types"
        return f"types {hashlib.sha256(repr(sorted(self.names.items())).encode()).hexdigest()[:16]}"


def _told_apart(full_names: Collection[str]) -> dict[str, str]:
    """Full name -> its name, with more parts where two would have the same; ConfigurationError: all their parts do not help."""
    parts = dict.fromkeys(full_names, 1)
    while True:
        names = {full: type_name(full, count) for full, count in parts.items()}
        often = Counter(names.values())
        same = sorted(full for full, name in names.items() if often[name] > 1)
        longer = [full for full in same if parts[full] < len(parts_of(full))]
        if not same:
            return names
        if not longer:
            raise ConfigurationError(f"{' and '.join(same)} would have the same table: list one of them")
        for full in longer:
            parts[full] += 1
