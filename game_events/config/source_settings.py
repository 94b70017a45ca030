"""Settings of the source of bronze's records; a part of `Settings`."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from game_events.config.limit_settings import LimitSettings

#: Kafka's rule for names of topics.
TOPIC_PATTERN = r"[a-zA-Z0-9._-]{1,249}"
_Number = Annotated[int, Field(ge=0)]
#: As in Spark's Kafka source: a word, or topic -> partition -> offset (-2: earliest, -1: latest).
StartingOffsets = Literal["earliest", "latest"] | dict[str, dict[_Number, Annotated[int, Field(ge=-2)]]]


def split_names(value: str) -> tuple[str, ...]:
    """``a, b`` as names."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


#: ``a, b`` in the environment, or a list in YAML.
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda v: split_names(v) if isinstance(v, str) else v)]


def refuse_credentials(address: str) -> str:
    """An address, unchanged; raises ValueError if it holds a key or password, as reports, logs and metadata show it."""
    parts = urlsplit(address)
    # In Azure's `abfss://container@account` it is no login.
    named = "@" in parts.netloc and not (parts.scheme.startswith("abfs") and parts.password is None)
    if "://" in address and (named or parts.query):
        raise ValueError("must hold no key or password: credentials come from the environment (docs/object-store.md)")
    return address


class SourceSettings(LimitSettings):
    """One topic, several, another pipeline's bronze, or files; see docs/sources.md."""

    kafka_topic: str = Field("game_events", min_length=1, description="topic that all games share; or several, comma separated")
    kafka_topic_pattern: str | None = Field(
        None, description="regular expression: all topics with a fully matching name, later ones too"
    )
    kafka_assign: dict[str, list[_Number]] = Field(
        default_factory=dict, description="topic -> partitions, as JSON: only these are read"
    )
    starting_offsets: Annotated[StartingOffsets, NoDecode] = Field(
        "earliest", description="where a new bronze table starts: earliest, latest, or JSON with offsets of partitions"
    )
    consumer_group: str | None = Field(
        None, description="consumer group for which bronze's offsets are committed, for tools that monitor lag"
    )
    message_types: NameList = Field(
        (), description="full names of the message types that are decoded, comma separated; empty: all"
    )
    source_table: str | None = Field(None, description="another pipeline's bronze table, to read it instead of Kafka")

    # --- files as the source
    source: Literal["kafka", "files"] = Field("kafka", description="source of records: a Kafka topic, or files")
    files_path: str | None = Field(None, description="folder, or prefix of an object store, with the source files")
    files_pattern: str = Field("*", min_length=1, description="which files below it; `*` also matches slashes")
    files_format: Literal["auto", "protobuf", "avro", "jsonl", "parquet"] = Field(
        "auto", description="format of the files; `auto`: by the suffix of each name"
    )
    files_schema: str | None = Field(
        None, description="file with the schema of protobuf (.proto) or JSON records, or `subject:NAME` of the registry"
    )
    files_message_type: str | None = Field(
        None, description="full name of the message type of protobuf records; else the first"
    )
    files_framed: bool = Field(False, description="each protobuf record begins with a registry frame that names its schema")
    files_settle_s: float = Field(10.0, ge=0, description="a file is left for later until it was not written for so long")
    files_incomplete_s: float = Field(
        3600.0, ge=0, description="seconds that a Parquet file without its end is left for later; then it is quarantined"
    )
    files_per_batch: int = Field(10_000, ge=1, description="files of one bronze commit")
    files_bytes_per_batch: int = Field(2**30, ge=1, description="bytes of these files, past the first one")

    @property
    def kafka_topics(self) -> tuple[str, ...]:
        """Names of the topics that are read; empty for a pattern, a table or files."""
        if self.kafka_topic_pattern is not None or self.source_table is not None or self.source == "files":
            return ()
        return tuple(self.kafka_assign) or split_names(self.kafka_topic)

    @property
    def produced_topic(self) -> str:
        """The topic that the simulator writes to: the first one."""
        return (self.kafka_topics or split_names(self.kafka_topic))[0]

    @property
    def source_name(self) -> str:
        """Display name of the source."""
        if self.source == "files":
            return str(self.files_path)
        if self.source_table is not None:
            return self.source_table
        if self.kafka_topic_pattern is not None:
            return f"topics like {self.kafka_topic_pattern}"
        return ", ".join(self.kafka_topics)

    @property
    def source_holder(self) -> str:
        """Display name of the system that holds the records."""
        if self.source == "files":
            return str(self.files_path)
        return self.source_table or "Kafka"

    @field_validator("kafka_topic")
    @classmethod
    def _topics(cls, value: str) -> str:
        names = split_names(value)
        if not names or len(set(names)) < len(names):
            raise ValueError("must hold one topic or several, comma separated, each once")
        if any(re.fullmatch(TOPIC_PATTERN, name) is None for name in names):
            raise ValueError("a topic's name has letters, digits, `.`, `_` and `-`, 249 at most")
        return ",".join(names)

    @field_validator("kafka_topic_pattern")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return value

    @field_validator("kafka_assign")
    @classmethod
    def _partitions(cls, value: dict[str, list[int]]) -> dict[str, list[int]]:
        if any(not partitions or len(set(partitions)) < len(partitions) for partitions in value.values()):
            raise ValueError("each topic needs its partitions, each once")
        return value

    @field_validator("starting_offsets", mode="before")
    @classmethod
    def _word_or_json(cls, value: object) -> object:
        if not isinstance(value, str) or value in {"earliest", "latest"}:
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError('must be earliest, latest, or JSON like {"topic": {"0": 23, "1": -2}}') from None

    @field_validator("files_path")
    @classmethod
    def _files(cls, value: str | None) -> str | None:
        return None if value is None else refuse_credentials(value)

    @field_validator("source_table")
    @classmethod
    def _table(cls, value: str | None) -> str | None:
        return None if value is None else refuse_credentials(value).rstrip("/")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = {
            "KAFKA_TOPIC_PATTERN": self.kafka_topic_pattern,
            "KAFKA_ASSIGN": self.kafka_assign,
            "SOURCE_TABLE": self.source_table,
            "SOURCE=files": self.source == "files",
        }
        given = [name for name, value in named.items() if value]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: set only one")
        return self
