"""What names the game, the player and the time of a record: by settings, as SQL expressions, aliases and a rule for names.

The values are computed where records are decoded, and are in bronze in the columns that `entity_column`, `key_column` and
`time_column` name. Bronze's transactions say by which definitions it was made (`marks_of`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from game_events.config.definitions.computed import OTHERS, Computed, Definitions, EntityNames, NameRule
from game_events.config.definitions.expressions import parsed, require_zone
from game_events.config.pipeline_settings import ENV_PREFIX, DomainSettings

#: The settings with expressions.
SETTINGS = ("entity", "key", "time")


def _mapping(value: object) -> object:
    """An expression, or expressions by message type, which are JSON in the environment."""
    if isinstance(value, str) and re.match(r'\s*\{\s*("|\})', value):
        return json.loads(value)
    return value


def _parsed(value: str | dict[str, str] | None) -> str | dict[str, str] | None:
    for expression in by_type(value).values():
        parsed(expression)
    return value


def by_type(value: str | Mapping[str, str] | None) -> Mapping[str, str]:
    """The expressions of a setting by message type."""
    if value is None:
        return {}
    return {OTHERS: value} if isinstance(value, str) else value


#: An SQL expression, or a mapping message type -> expression.
Expressions = Annotated[str | dict[str, str] | None, NoDecode, BeforeValidator(_mapping), AfterValidator(_parsed)]


class DefinitionSettings(DomainSettings):
    """Which game, which player, when: computed from each record."""

    group: ClassVar[str] = "domain"

    # --- which game, which player, when (docs/domains.md)
    entity: Expressions = None
    """SQL expression of a record that names its game, or a mapping message type -> expression (`*`: others); in
    `ENTITY_COLUMN`. Unset: the decoded field of that name"""
    key: Expressions = None
    """the same for the player, in `KEY_COLUMN`"""
    time: Expressions = None
    """the same for the event time, in `TIME_COLUMN`: a timestamp, or a text with a zone; of numbers: `timestamp_millis(x)`"""
    entity_names: NameRule = "keep"
    """names that are no legal names of games: `keep`: their rows stay in bronze; `lower`: in lower case; `replace`: also `_`
    for every other character"""
    entity_aliases: dict[str, str] = Field(default_factory=dict)
    """name -> game: `{"com.studio.rummy": "rummy"}`"""

    @field_validator("entity_aliases")
    @classmethod
    def _aliases(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        wrong = EntityNames(value, info.data.get("entity_names", "keep")).problem()
        if wrong is not None:
            raise ValueError(wrong)
        return value

    @model_validator(mode="after")
    def _columns_for_values(self) -> Self:
        named = self.entity_aliases or self.entity_names != "keep"
        wanted = {
            "entity": self.entity is not None or named,
            "key": self.key is not None,
            "time": self.time is not None,
        }
        for setting, is_set in wanted.items():
            column = getattr(self, f"{setting}_column")
            name = f"{ENV_PREFIX}{setting}_column".upper()
            if is_set and column.startswith("_"):
                advice = f"set {ENV_PREFIX}{setting.upper()}={column} and {name} to a name of yours"
                raise ValueError(f"{name}={column} is a column of bronze's own, and no value is put into it: {advice}")
        if self.time is not None and self.naive_times_zone is not None:
            require_zone(self.naive_times_zone)
        return self


def definitions_of(settings: DefinitionSettings) -> Definitions | None:
    """Those of the settings; None: all three values are decoded fields as they are."""
    computed = tuple(
        Computed(name, getattr(settings, f"{name}_column"), {type_: parsed(sql) for type_, sql in of_type.items()})
        for name in SETTINGS
        if (of_type := by_type(getattr(settings, name)))
    )
    is_renamed = settings.entity_aliases or settings.entity_names != "keep"
    names = EntityNames(settings.entity_aliases, settings.entity_names) if is_renamed else None
    if not computed and names is None:
        return None
    marks = marks_of(settings)
    return Definitions(computed, settings.entity_column, names, settings.naive_times_zone, marks)


def marks_of(settings: DefinitionSettings) -> dict[str, int]:
    """Setting -> a number that another definition does not have; 0: the decoded field as it is."""
    parts: dict[str, list[Any]] = {name: [dict(by_type(getattr(settings, name)))] for name in SETTINGS}
    if settings.entity_aliases or settings.entity_names != "keep":
        parts["entity"] += [settings.entity_aliases, settings.entity_names]
    if settings.time is not None:
        parts["time"].append(settings.naive_times_zone)
    columns = {name: getattr(settings, f"{name}_column") for name in SETTINGS}
    return {name: _number([columns[name], *part]) if any(part) else 0 for name, part in parts.items()}


def number_of(settings: DefinitionSettings) -> int:
    """A number of all three definitions; 0: there is none."""
    marks = marks_of(settings)
    return _number([marks]) if any(marks.values()) else 0


def _number(definition: list[Any]) -> int:
    """63 bits of a hash, never 0."""
    text = json.dumps(definition, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1 or 1
