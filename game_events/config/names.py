"""Names: of tables and assets, of gold columns; what SQL texts of settings may not do.

Code uses a table's *key*, its name with the default nouns (`silver_rummy_events`); users and folders have its *name*. They
differ only where prefix or nouns were changed.

The setting `gold_columns` of the built-in aggregate: column -> SQL aggregate over a key's rows of silver. If all columns are
`count`, `sum`, `min` or `max` of one expression, new rows are merged with the old aggregate. Anything else (averages, distinct
counts, `first`, `last`) is recomputed from all rows of the keys that have new ones.

SQL expressions of settings are searched as texts. Spark would evaluate anything in them. Who writes settings is no author of
code: an expression reads one row (or the rows of one key), and neither other tables and files nor the environment of the
process, with its secrets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from game_events.errors import folded
from game_events.extending import PLAYER_AGG, Measure, count, max_of, min_of, problem_with_columns, sum_of

#: Legal for folders, SQL without quotes, and Dagster (`dagster._core.definitions.utils.VALID_NAME_REGEX`).
_NOUN = r"^[a-z][a-z0-9_]{0,99}$"
PROGRESS = "progress"
#: The pipeline's system tables: only the prefix changes their names.
OWN = (
    "schemas",
    PROGRESS,
    "event_log",
    "erased_people",
    "source_files",
    "export_calls",
    "export_outcomes",
    "export_failed_calls",
)
#: The keys that some of them had in game_events 0.1.
FORMER_OWN = {
    "suppressed_entities": "erased_people",
    "rest_outbox": "export_calls",
    "rest_deliveries": "export_outcomes",
    "rest_dead_letters": "export_failed_calls",
}
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
        own = {name: self._key_of(name) for name in names}
        strange = [name for name, key in own.items() if key is None]
        keys = {name: key for name, key in own.items() if key is not None}
        keys |= {name: name for name in self._of_no_pipeline(strange)}
        return [keys[name] for name in sorted(keys)]

    def _of_no_pipeline(self, strange: Sequence[str]) -> list[str]:
        """Those of some names of tables that are not this pipeline's that are no other one's either."""
        prefixes = tuple(name.removesuffix(PROGRESS) for name in strange if name.endswith(f"_{PROGRESS}"))
        return [name for name in strange if self.name_of(name) == name and not name.startswith(prefixes)]

    def silver_path(self, separator: str | None = None) -> str:
        """Pattern of a file of a silver table, with the entity as its one group; what follows a `separator` is a type."""
        entity = "([a-z0-9_]+)" if separator is None else f"([a-z0-9_]+?)(?:{separator}[a-z0-9_]+)?"
        return rf"/{self.prefix}silver_{entity}_{self.events}/[^/]+$"

    def gold_path(self) -> str:
        """Pattern of a file of a gold table, with the entity as its one group."""
        return rf"/{self.prefix}gold_([a-z0-9_]+)_{self.aggregate}/[^/]+$"

    def _key_of(self, name: str) -> str | None:
        """The key of a table of this pipeline; None for any other table."""
        if not name.startswith(self.prefix):
            return None
        plain = _swapped(name.removeprefix(self.prefix), _EVENT_LAYERS, self.events, _EVENTS)
        key = _swapped(plain, _GOLD, self.aggregate, PLAYER_AGG)
        # All tables with the prefix are this pipeline's; without a prefix, only those that it creates.
        ours = self.prefix or key in (*OWN, *FIXED) or re.fullmatch(rf"silver_.+_{_EVENTS}|gold_.+", key)
        return key if ours and self.name_of(key) == name else None


def _swapped(name: str, layers: tuple[str, ...], old: str, new: str) -> str:
    """A name or key of one of the layers with another noun at its end."""
    if old == new:
        return name
    return name.removesuffix(old) + new if name.startswith(layers) and name.endswith(f"_{old}") else name


_CALL = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\((.*)\)\s*", re.DOTALL)
_MERGING = {"count": count, "sum": sum_of, "min": min_of, "max": max_of}
#: Not deterministic: gold could not be compared with a recompute.
_CHANGING = re.compile(r"\b(current_\w+|rand|randn|random|uuid|any_value|approx_\w+)(?=\s*\()", re.IGNORECASE)
#: Without an order of rows, unless the whole expression is such a call: then rows are ordered by time.
_UNORDERED = re.compile(r"\b(first|last|first_value|last_value)\s*\(", re.IGNORECASE)
#: Comments; windows, which see other keys' rows, of all games of a refresh; functions that make rows.
_REFUSED = re.compile(
    r";|--|/\*|\bover\s*\(|\b(?:(?:pos)?explode(?:_outer)?|inline(?:_outer)?|stack|json_tuple)\s*\(", re.IGNORECASE
)
_BRACKETS = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_BY_TIME = {"first": "min_by", "last": "max_by"}
#: Orders rows of the same time, so that `first` and `last` are deterministic.
_PLACE = "_kafka_topic, _kafka_partition, _kafka_offset"


def problem(columns: Mapping[str, str], taken: tuple[str, ...]) -> str | None:
    """The first error in some columns that can be read without Spark; `taken`: names of the key's and the entity's column."""
    wrong_name = problem_with_columns(columns, taken)
    wrong = (f"{name}: {error}" for name, sql in columns.items() if (error := _wrong(sql)) is not None)
    return wrong_name or next(wrong, None)


def _wrong(sql: str) -> str | None:
    """The first error in a column's expression."""
    bare = without_texts(sql)
    if not _is_call(sql, bare):
        return f"{sql!r} is no aggregate: write it like max(temperature)"
    called = foreign_call(sql)
    if called is not None:
        return f"{called} in {sql!r} runs other code: a column is computed from a key's rows and nothing else"
    if holds_query(sql) or _REFUSED.search(bare):
        return f"{sql!r} holds a query or a comment, a window (OVER) or explode: it must be one value of a key"
    changing = _CHANGING.search(bare) or (None if _is_by_time(sql) else _UNORDERED.search(bare))
    if changing is not None:
        only = "; first(x) and last(x) must be the whole expression" if _UNORDERED.match(changing[0]) else ""
        return f"{changing[1]} in {sql!r} is not deterministic{only}"
    return f"the clock in {sql!r} is not deterministic" if reads_clock(sql) else None


def _is_call(sql: str, bare: str) -> bool:
    """Whether an expression calls a function, and its brackets and quotes match; `bare`: without texts."""
    return _outside(sql) is not None and not re.search(r"['\"`]", bare) and re.search(r"\w\s*\(", bare) is not None


def _is_by_time(sql: str) -> bool:
    """Whether the whole expression is `first(x)` or `last(x)`, and nothing in `x` depends on an order."""
    call = _whole_call(sql)
    return call is not None and call[0] in _BY_TIME and not _UNORDERED.search(without_texts(call[1]))


def measures(columns: Mapping[str, str]) -> dict[str, Measure] | None:
    """Column -> measure, if every column can be merged; else None."""
    parsed: dict[str, Measure] = {}
    for name, sql in columns.items():
        function, inside = _whole_call(sql) or ("", "")
        if function not in _MERGING:
            return None
        parsed[name] = _MERGING[function]("1" if inside.strip() == "*" else inside.strip())
        if not parsed[name].merges:
            return None
    return parsed


def expression(sql: str, time_column: str) -> str:
    """A column's SQL for Spark, with `first(x)` and `last(x)` by time."""
    call = _whole_call(sql)
    if call is None or call[0] not in _BY_TIME:
        return sql
    return f"{_BY_TIME[call[0]]}({call[1]}, struct(`{time_column}`, {_PLACE})) FILTER (WHERE `{time_column}` IS NOT NULL)"


def simple_call(sql: str) -> tuple[str, str] | None:
    """(function, column) of an aggregate over one plain column or `*`; None for anything else."""
    call = _whole_call(sql)
    if call is None or not re.fullmatch(r"`?\w+`?|\*", call[1].strip()):
        return None
    return call[0], call[1].strip().strip("`")


def _whole_call(sql: str) -> tuple[str, str] | None:
    """(lower-case function, text in its brackets), if the whole expression is one call with one argument."""
    call = _CALL.fullmatch(sql)
    inside = _outside(call[2]) if call is not None else None
    return None if call is None or inside is None or "," in inside else (call[1].lower(), call[2])


def _outside(sql: str) -> str | None:
    """The SQL outside of brackets and quotes; None: brackets do not match."""
    bare = without_texts(sql)
    while (shorter := _BRACKETS.sub("", bare)) != bare:
        bare = shorter
    return None if re.search(r"[()\[\]{}]", bare) else bare


_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`"""
_BRACKET = re.compile(r"\s*\(")
_TEXT_OR_COMMENT = re.compile(rf"{_TEXT}|--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUERY = re.compile(r"\bselect\b|\(\s*(?:from|table|with)\s+\w|\(\s*values\s*[(\w']", re.IGNORECASE)
#: Methods of Java, which read the process's environment or end it; functions that are named by a text.
_FOREIGN = re.compile(r"\b(reflect|try_reflect|java_method|identifier)\s*\(", re.IGNORECASE)
_CLOCK = re.compile(
    r"\b(?:current_timestamp|current_date|localtimestamp)\b|\b(?:now|curdate|current_time|unix_timestamp)\s*\(\s*\)",
    re.IGNORECASE,
)
_MOMENT = r"'\s*(?:now|today|yesterday|tomorrow)\b"
#: A text that becomes a time: `timestamp'now'`, `CAST('now' AS ...)`, `to_date('now')`, `'now'::timestamp`.
_CLOCK_TEXT = re.compile(
    rf"\b(?:date|timestamp\w*|(?:(?:try_)?cast|(?:try_)?to_(?:date|timestamp\w*))\s*\()\s*{_MOMENT}|{_MOMENT}\s*'\s*::",
    re.IGNORECASE,
)


def without_texts(sql: str) -> str:
    """The expression with `x` for each text and quoted name; a quoted name that is called is left, without its quotes."""
    return re.sub(_TEXT, _left, sql)


def without_texts_and_comments(sql: str) -> str:
    """As `without_texts`, with `x` for each comment, too."""
    return _TEXT_OR_COMMENT.sub(_left, sql)


def _left(text: re.Match[str]) -> str:
    called = text[0].startswith("`") and _BRACKET.match(text.string, text.end()) is not None
    return text[0].strip("`") if called else " x "


def holds_query(sql: str) -> bool:
    """Whether it reads more than the rows that it is evaluated for: other tables, or files."""
    return bool(_QUERY.search(without_texts_and_comments(sql)))


def foreign_call(sql: str) -> str | None:
    """The function of an expression that runs any other code; None if there is none."""
    call = _FOREIGN.search(without_texts_and_comments(sql))
    return None if call is None else call[1]


def reads_clock(sql: str) -> bool:
    """Whether the result depends on when the expression is evaluated."""
    return bool(_CLOCK.search(without_texts_and_comments(sql)) or _CLOCK_TEXT.search(sql))


def columns_in(sql: str, columns: Iterable[str]) -> set[str]:
    """The columns that an expression may use: those whose names it has; for a `*`, all of them."""
    used = words(sql)
    return {name for name in columns if "*" in sql or words(name) <= used}


def words(sql: str) -> set[str]:
    """Its words, as Spark compares names."""
    return set(re.findall(r"\w+", folded(sql)))
