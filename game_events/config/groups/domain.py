"""Settings of the domain: columns, names, rules, user code."""

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from game_events.config.gold_columns import problem
from game_events.config.groups.values import ENV_PREFIX, NameList, OnBadValue
from game_events.config.naming import Names
from game_events.config.producer import SampleData
from game_events.rules import Rule, require_unique


class DomainSettings(BaseSettings):
    """What the message's columns mean, names, rules and extensions."""

    group: ClassVar[str] = "domain"

    # --- the domain: what the message's columns mean (docs/domains.md)
    entity_column: str = "game_name"
    """column that names the game: one silver and gold table for each value; of bronze's own columns `_kafka_topic`, too, if the
    topics' names are legal names of games"""
    key_column: str = "gamer_id"
    """column that gold aggregates by"""
    time_column: str = "event_timestamp"
    """column with the event time: gold keeps its minimum and maximum"""
    gold_columns: dict[str, str] = Field(default_factory=dict)
    """gold's columns beside the key: name -> SQL aggregate; empty: `session_count`, `min_timestamp`, `max_timestamp`"""
    names: Names = Field(default_factory=Names)
    """prefix and nouns in names of tables and assets, and in texts (docs/domains.md)"""
    producer: SampleData = Field(default_factory=SampleData)
    """the message and sample data of `produce` and `demo`; default: the game event"""

    # --- single values (docs/decoding.md)
    on_bad_value: OnBadValue = "quarantine"
    """a value that its type does not take: `quarantine` of its record, `null`, or a mapping column -> choice (`*`: others)"""
    naive_times_zone: str | None = None
    """time zone (`Europe/Berlin`) of times in JSON that name none; unset: they are bad values"""

    decimal_messages: Literal["struct", "decimal"] = "struct"
    """`confluent.type.Decimal`, `google.type.Decimal` and `Money` of protobuf: structs of their fields, or decimals"""

    # --- checks on tables (docs/observability.md)
    freshness_s: int = Field(93_600, ge=0, le=315_360_000)
    """maximum age of bronze's last commit of records, in seconds; `0`: not checked"""

    # --- data quality (docs/quality.md)
    rules: Annotated[tuple[Rule, ...], AfterValidator(require_unique)] = ()
    """expectations of silver and gold rows: a list in YAML, JSON in the environment"""

    # --- extensions (docs/extending.md)
    extensions: NameList = ()
    """modules or `.py` files with user-defined rules, silver transformations and gold aggregates, comma separated"""

    @field_validator("entity_column")
    @classmethod
    def _entity_column(cls, value: str) -> str:
        if "/" in value or "=" in value:
            raise ValueError("must hold neither / nor =: the unified table has a folder of that name for each of its values")
        return value

    @field_validator("naive_times_zone")
    @classmethod
    def _naive_times_zone(cls, value: str | None) -> str | None:
        try:
            return value if value is None else ZoneInfo(value).key
        except (ValueError, OSError, ZoneInfoNotFoundError):
            raise ValueError("is no time zone of the IANA database, such as UTC or Europe/Berlin") from None

    @field_validator("producer")
    @classmethod
    def _proto(cls, value: SampleData) -> SampleData:
        if value.proto is None:
            return value
        # It need not exist: only `produce` and `demo` read it.
        folder = Path(os.environ.get(ENV_PREFIX + "CONFIG") or "game_events.yaml").parent
        return value.model_copy(update={"proto": (folder / value.proto).resolve()})

    @field_validator("gold_columns")
    @classmethod
    def _gold_columns(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        wrong = problem(value, (info.data.get("key_column", ""), info.data.get("entity_column", "")))
        if wrong is not None:
            raise ValueError(wrong)
        return value
