"""Settings of the source of bronze's records."""

import json
import re
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from game_events.config.pipeline_settings import Address, NameList, SettingsGroup, split_names
from game_events.plugin import installed

#: Kafka's rule for names of topics.
TOPIC_PATTERN = r"[a-zA-Z0-9._-]{1,249}"
_Number = Annotated[int, Field(ge=0)]
#: As in Spark's Kafka source: a word, or topic -> partition -> offset (-2: earliest, -1: latest).
StartingOffsets = Literal["earliest", "latest"] | dict[str, dict[_Number, Annotated[int, Field(ge=-2)]]]


#: Kind of source that another setting than `source` chooses.
TABLE = "table"


class KafkaSettings(SettingsGroup):
    """Kafka, the schema registry, and data loss."""

    group: ClassVar[str] = "kafka"

    # --- Kafka and the registry (docs/sources.md)
    kafka_bootstrap_servers: str = "localhost:9092"
    """host:port of the brokers, comma separated"""
    kafka_options: dict[str, SecretStr] = Field(default_factory=dict)
    """further Kafka client options with librdkafka's names (`security.protocol`, `sasl.mechanism`, `sasl.username`,
    `sasl.password`, `ssl.ca.location`, ...); translated for Spark; never shown"""
    schema_registry_url: str = "http://localhost:8081"
    """address of the Confluent-compatible registry"""
    schema_registry_user: str | None = None
    """user for the registry's basic authentication"""
    schema_registry_password: SecretStr | None = None
    """password for the registry's basic authentication"""
    kafka_topic: str = Field("game_events", min_length=1)
    """topic that all games share; or several, comma separated"""
    kafka_topic_pattern: str | None = None
    """regular expression, instead: every topic with a fully matching name, later ones too"""
    kafka_assign: dict[str, list[_Number]] = Field(default_factory=dict)
    """topic -> partitions, instead: only these are read"""
    starting_offsets: Annotated[StartingOffsets, NoDecode] = "earliest"
    """where a new bronze table starts: `earliest`, `latest`, or JSON as Spark has it: `{"topic": {"0": 23, "1": -2}}`"""
    starting_timestamp: AwareDatetime | None = None
    """a new bronze table, or one after a full refresh, starts with the records of this time (`2026-11-21T00:00:00Z`); overrides
    `STARTING_OFFSETS`"""
    max_records_per_batch: int = Field(2_000_000, ge=1)
    """records of one bronze commit, all partitions together"""
    consumer_group: str | None = None
    """consumer group to which bronze's offsets are committed, for tools that watch lag"""
    message_types: NameList = ()
    """full names of the message types that are decoded, comma separated; empty: all. Records of other types stay in bronze
    undecoded"""
    source_table: Annotated[Address, AfterValidator(lambda path: path.rstrip("/"))] | None = None
    """another pipeline's `bronze_events` (path or URI), to read it instead of Kafka"""

    # --- data loss (docs/operations.md)
    on_data_loss: Literal["stop", "record_gap"] = "stop"
    """records that expired, or were deleted with their topic, before they were read: `stop`, or `record_gap`: continue and
    record the gap"""

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

    @field_validator("schema_registry_url")
    @classmethod
    def _http(cls, value: str) -> str:
        urls = [url.strip() for url in value.split(",")]
        if not all(url.startswith(("http://", "https://", "mock://")) for url in urls):
            raise ValueError("must start with http:// or https://, each of several addresses, too")
        # Errors, tables and Dagster's events name this address.
        if any("@" in urlsplit(url).netloc for url in urls):
            raise ValueError(
                "must hold no password: set GAME_EVENTS_SCHEMA_REGISTRY_USER and GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"
            )
        return value.rstrip("/")


class FileSettings(SettingsGroup):
    """Files as the source of records."""

    group: ClassVar[str] = "files"

    # --- files as the source (docs/sources.md)
    source: str = "kafka"
    """where records are read from: `kafka`, or `files`: a folder or prefix instead of a topic; or a plug-in's source"""
    files_path: Address | None = None
    """folder, or prefix of an object store (`s3://bucket/prefix`)"""
    files_pattern: str = Field("*", min_length=1)
    """which files below the path; `*` matches slashes, too"""
    files_format: Literal["auto", "protobuf", "avro", "jsonl", "parquet"] = "auto"
    """format of the files; `auto`: by the ending of each name"""
    files_schema: str | None = None
    """schema of protobuf and JSON records: a `.proto` or `.json` file, or `subject:NAME` of the registry"""
    files_message_type: str | None = None
    """full name of the message type of protobuf records; else the schema's first"""
    files_framed: bool = False
    """each protobuf record begins with a registry frame that names its schema"""
    files_settle_s: float = Field(10.0, ge=0)
    """a file is read only once it has not been written for this many seconds"""
    files_incomplete_s: float = Field(3600.0, ge=0)
    """seconds that a Parquet file without a footer is left for later; then it is quarantined"""
    files_per_batch: int = Field(10_000, ge=1)
    """files of one bronze commit"""
    files_bytes_per_batch: int = Field(2**30, ge=1)
    """bytes of the files of one bronze commit, beyond the first file"""

    @field_validator("source")
    @classmethod
    def _installed(cls, value: str) -> str:
        kinds = ["kafka", *(kind for plugin in installed() for kind in plugin.sources if kind != TABLE)]
        if value not in kinds:
            raise ValueError(f"must be one of {', '.join(kinds)}")
        return value


class SourceSettings(KafkaSettings, FileSettings):
    """Source of bronze's records: topics, another pipeline's bronze, or files; see docs/sources.md."""

    @property
    def source_kind(self) -> str:
        """Kind of the source (`sources.factory`)."""
        return self.source if self.source_table is None else TABLE

    @property
    def kafka_topics(self) -> tuple[str, ...]:
        """Names of the topics that are read; empty for a pattern, a table or files."""
        if self.kafka_topic_pattern is not None or self.source_kind != "kafka":
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
