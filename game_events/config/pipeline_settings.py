"""The core's settings by group, and checks of single values that several groups use."""

import json
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode

from game_events.config.file_layout import Layouts, StatisticsColumns
from game_events.config.names import Names, problem
from game_events.config.retention import RetentionDays, problem_of
from game_events.config.sources import kafka_login
from game_events.config.sources.topic_decoding import TopicDecoding, require_patterns
from game_events.config.type_names import SEPARATOR, TypeTables
from game_events.errors import ConfigurationError
from game_events.plugin import installed
from game_events.rules import Deduplicate, Rule, require_apart, require_unique

#: Prefix of all environment variables.
ENV_PREFIX = "GAME_EVENTS_"


def split_names(value: str) -> tuple[str, ...]:
    """``a, b`` as names."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


#: ``a, b`` in the environment, or a list in YAML.
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda v: split_names(v) if isinstance(v, str) else v)]
TableFeatures = Annotated[
    tuple[Literal["changeDataFeed", "inCommitTimestamp", "rowTracking"], ...],
    NoDecode,
    BeforeValidator(lambda v: split_names(v) if isinstance(v, str) else v),
]
Choice = Literal["quarantine", "null"]


def _choices(value: object) -> object:
    """A choice, or choices by column; YAML's null is the word."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return {name: "null" if choice is None else choice for name, choice in value.items()}
    return "null" if value is None else value


#: `null`, `quarantine`, or a mapping column -> one of them: JSON in the environment.
OnBadValue = Annotated[Choice | dict[str, Choice], NoDecode, BeforeValidator(_choices)]


def refuse_credentials(address: str) -> str:
    """An address, unchanged; raises ValueError if it holds a key or password, as reports, logs and metadata show it."""
    parts = urlsplit(address)
    # In Azure's `abfss://container@account` it is no login.
    named = "@" in parts.netloc and not (parts.scheme.startswith("abfs") and parts.password is None)
    if "://" in address and (named or parts.query):
        raise ValueError("must hold no key or password: credentials come from the environment (docs/object-store.md)")
    return address


def require_http(value: SecretStr) -> SecretStr:
    """An address, unchanged; raises ValueError, which does not repeat it, if it cannot be called."""
    if not value.get_secret_value().startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    try:
        parts = urlsplit(value.get_secret_value())
        is_complete = parts.port != 0 and len((parts.hostname or "").encode("idna")) > 0
    except ValueError:
        is_complete = False
    if not is_complete:  # the address, which may hold a secret, is not repeated
        raise ValueError("is no address that can be called, such as https://host:port/path")
    return value


#: The address of tables or files, without credentials.
Address = Annotated[str, AfterValidator(refuse_credentials)]
#: A secret address of HTTP or HTTPS.
SecretUrl = Annotated[SecretStr, AfterValidator(require_http)]


class Receiver(NamedTuple):
    """An address to which something is sent: name of its setting, its value, and what can be read on the way to it."""

    setting: str
    address: str | None
    what: str


class SettingsGroup(BaseSettings):
    """A group of settings, of the core or of a plug-in; `group` is its name in the settings file."""

    group: ClassVar[str]

    @classmethod
    def of(cls, settings: BaseSettings) -> Self:
        """The settings as those of this group.

        Raises:
            TypeError: they were made without it, and not by `load_settings`.
        """
        if not isinstance(settings, cls):
            raise TypeError(f"settings without {cls.__name__}: make them by load_settings()")
        return settings

    def further_secrets(self) -> Iterable[str]:
        """Texts to hide beside the values of secret settings, such as `masking.login_secrets`."""
        return ()

    def receivers(self) -> Iterable[Receiver]:
        """Addresses to which the group's settings send something."""
        return ()


class SparkSettings(SettingsGroup):
    """Spark's session, cluster and code."""

    group: ClassVar[str] = "spark"

    # --- Spark (docs/cluster.md)
    spark_master: str = "local[*]"
    """Spark master, unless `SPARK_REMOTE` is set"""
    spark_remote: str | None = None
    """`sc://host:port` of a Spark Connect server, instead of a master"""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """further Spark settings"""
    spark_driver_memory: str = Field("1g", pattern=r"^\d+[mg]$")
    """heap of the Spark driver's JVM: a number with `m` or `g`"""
    spark_ship_code: Literal["auto", "always", "never"] = "auto"
    """send this project's code to Spark's workers: `auto` (to those of other machines), `always`, `never`"""
    spark_py_files: NameList = ()
    """`.py` and `.zip` files that extensions import, sent to the workers too, comma separated"""
    warm_spark: bool = True
    """`game-events up`: all runs share one Spark Connect server; `False`: each run starts a JVM"""


class RunSettings(SettingsGroup):
    """Continuous mode, retries, the UI, this machine."""

    group: ClassVar[str] = "runs"

    # --- continuous mode (docs/continuous.md)
    poll_interval_s: float = Field(1.0, ge=0.05, le=60)
    """seconds between two polls of the topic; cycles start no more often"""
    gold_interval_s: float = Field(10.0, ge=0)
    """seconds between two refreshes of gold and the unified table; `0`: in each cycle. A triggered run always refreshes them"""

    continuous_run_h: float = Field(24.0, gt=0)
    """hours after which a continuous run ends and a new one takes over"""
    run_history_h: float = Field(168.0, ge=0)
    """hours that ended runs of this lakehouse stay in Dagster's storage (their results stay in `event_log`); `0`: for ever"""
    automation: bool = True
    """whether sensors and schedules run from the beginning; `off` for a code location that must not start anything by itself,
    such as a branch deployment: each can be switched on in the UI"""

    # --- retries and alerts (docs/alerts.md)
    mode: Literal["production", "development"] = "production"
    """`production` retries transient errors; `development` fails at the first error"""
    max_retries: int = Field(3, ge=0, le=20)
    """times a run's step is retried after a transient error"""
    retry_delay_s: float = Field(2.0, gt=0)
    """seconds before the first retry; doubled each time, at most 300"""
    alert_lag_records: int = Field(0, ge=0)
    """records of lag that raise an alert; 0: no such alert"""
    dagster_url: str | None = None
    """address of the Dagster UI, for links in alerts; also the one name besides this machine's own under which `game-events up`
    answers"""

    # --- TLS: certificates are always verified (docs/security.md)
    tls_ca_file: Path | None = None
    """PEM file of the authorities that certificates of the registry, token servers, the webhook, `REST_URL`, Unity Catalog,
    Iceberg's REST catalog and the receiver of lineage are verified with"""

    # --- access to the Dagster UI (docs/security.md)
    job_places: NameList = ()
    """folders and prefixes that jobs started in the UI may archive to or send files of, comma separated; commands may use
    any"""
    ui_users: NameList = ()
    """further users of this machine (a proxy's) who may connect to the UI of `game-events up`, comma separated"""

    # --- this machine
    state_dir: Path = Path(".game_events")
    """folder of the local stack's data and Dagster's storage"""

    @field_validator("tls_ca_file")
    @classmethod
    def _authorities(cls, value: Path | None) -> Path | None:
        if value is not None:
            if not value.is_file():
                raise ValueError(f"{value} is not a file")
            try:
                ssl.create_default_context(cafile=value)
            except OSError as error:
                raise ValueError(f"{value} has no certificates that can be read ({type(error).__name__})") from None
        return value


class TableSettings(SettingsGroup):
    """Root and content of the tables, and how long old versions are kept."""

    group: ClassVar[str] = "tables"

    # --- tables
    lakehouse: Address = Field("lakehouse", min_length=1)
    """root path or URI of the tables (`s3://bucket/prefix`)"""
    games: NameList = ()
    """allow list, comma separated; empty: every game"""
    keep_raw: Literal["all", "failures"] = "all"
    """raw values in bronze: `all`, or `failures`: only in quarantine and for types that `MESSAGE_TYPES` leaves out"""

    silver_layout: Literal["tables", "partitioned"] = "tables"
    """`tables`: a silver and a gold table for each game; `partitioned`: one of each for all games, partitioned by game
    (docs/scale.md)"""
    silver_per: Literal["entity", "entity_and_type"] = "entity"
    """`entity`: one silver table for each game; `entity_and_type`: also one for each of its message types, with that type's
    columns alone (docs/domains.md)"""
    silver_types: NameList = ()
    """full names of the message types with tables of their own, comma separated; empty: all, unless records name their type
    themselves; rows of other types are in the game's own table"""

    # --- layout of files (docs/maintenance.md)
    layout: Layouts = Field(default_factory=dict)
    """layer (`bronze`, `silver`) -> which rows are in one file: `day`: those of one day (UTC) of the event's time;
    `arrival_day`: of the record's; or those with near values of columns: `silver=day,bronze=arrival_day`,
    `silver=cluster(level, country)`, or a mapping, with columns as a list"""
    statistics_columns: StatisticsColumns = Field(default_factory=dict)
    """columns by whose bounds readers leave out files, beside the first 32: names, comma separated, or layer (`bronze`,
    `silver`, `all`) -> names"""

    # --- maintenance (docs/maintenance.md)
    every_version_h: float = Field(2.0, gt=0)
    """hours that every version of a table can be read; a query that takes longer may lose its files"""
    replaced_files_h: float = Field(168, gt=0)
    """hours that older versions of bronze, silver, quarantine and the logs can be read, with files that were replaced since:
    of the last day one an hour, before that one a day"""
    derived_replaced_files_h: float = Field(24, gt=0)
    """the same for gold, the unified table and `progress`"""
    orphan_retention_h: float = Field(168, ge=1)
    """hours that files are kept which no commit names (left by crashes)"""
    table_features: TableFeatures = ()
    """Delta's features that local tables get when they are made, older ones by maintenance; tables keep them without the
    setting, too (docs/maintenance.md)"""

    # --- rows by age (docs/maintenance.md)
    retention_days: dict[str, float] = Field(default_factory=dict)
    """days after which maintenance removes rows: layer (`bronze`, `silver`, `quarantine`, `event_log`; `raw`: bronze's raw
    values alone), `layer:game`, `layer:game:type` or `layer:*:type` -> days, `0`: never; unset: no row is removed by age"""
    allow_refresh_without_expired: bool = False
    """whether a full refresh may leave out rows that were removed by age from what it reads"""

    # --- full refresh (docs/refresh.md)
    allow_bronze_full_refresh: bool = False
    """whether a full refresh may replace bronze; records that Kafka has expired are lost by it"""

    @field_validator("retention_days")
    @classmethod
    def _retention_days(cls, value: dict[str, float]) -> dict[str, float]:
        wrong = problem_of(value)
        if wrong is not None:
            raise ValueError(wrong)
        return value

    @property
    def row_retention(self) -> RetentionDays | None:
        """The limits of rows' ages; None: there are none."""
        return RetentionDays(self.retention_days) if any(self.retention_days.values()) else None

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        if self.table_features and "://" in self.lakehouse:
            raise ValueError(
                "GAME_EVENTS_TABLE_FEATURES needs a local lakehouse: delta-rs, which commits to object stores, has none"
            )
        return self

    @model_validator(mode="after")
    def _types_fit(self) -> Self:
        if self.silver_per == "entity":
            if self.silver_types:
                raise ValueError("GAME_EVENTS_SILVER_TYPES needs GAME_EVENTS_SILVER_PER=entity_and_type")
            return self
        if self.silver_layout == "partitioned":
            raise ValueError(
                "GAME_EVENTS_SILVER_PER=entity_and_type needs GAME_EVENTS_SILVER_LAYOUT=tables: a partitioned table has all "
                "types"
            )
        if odd := [game for game in self.games if SEPARATOR in game]:
            raise ValueError(
                f"GAME_EVENTS_GAMES names {', '.join(odd)}: with GAME_EVENTS_SILVER_PER=entity_and_type no name may have two "
                "underscores in a row, which stand between game and type in the names of tables"
            )
        try:
            TypeTables(self.silver_types).names  # noqa: B018 - asked for, so that it is checked
        except ConfigurationError as error:
            raise ValueError(f"GAME_EVENTS_SILVER_TYPES: {error}") from None
        return self

    @property
    def type_tables(self) -> TypeTables | None:
        """Which message types have tables of their own; None: none has."""
        return TypeTables(self.silver_types) if self.silver_per == "entity_and_type" else None


class StorageSettings(SettingsGroup):
    """Object store of the tables."""

    group: ClassVar[str] = "storage"

    # --- object store (docs/object-store.md)
    # Credentials are read from the environment or the provider's own files, never from settings.
    storage_endpoint: str | None = None
    """address of an S3-compatible store; else `AWS_ENDPOINT_URL`, else AWS's own"""
    storage_region: str | None = None
    """region of the store; else `AWS_REGION`"""
    storage_path_style: bool = True
    """with an endpoint: the bucket is in the path, not in the host name"""
    storage_allow_http: bool = False
    """allow plain HTTP to a store on another machine"""


class DiscoverySettings(SettingsGroup):
    """Owners, tags and catalog of the tables."""

    group: ClassVar[str] = "discovery"

    # --- owners, catalog (docs/discovery.md)
    owners: NameList = ()
    """owners of all tables: `team:name` or an e-mail address, comma separated"""
    tags: dict[str, dict[str, str]] = Field(default_factory=dict)
    """layer (`bronze`, `silver`, `gold`, `own`; `all`) -> tags of its tables: `{"all": {"domain": "games"}, "gold": {"pii":
    "no"}}`"""
    catalog: str | None = None
    """database (`name` or `catalog.name`) of Spark's catalog in which every table is registered"""

    @field_validator("owners")
    @classmethod
    def _owners(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            # An address as Dagster takes it (`dagster._core.utils.is_valid_email`).
            if not re.fullmatch(
                r"team:[^\s\x00-\x1f]{1,100}|[A-Za-z0-9_][\w.%+-]{0,63}@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", owner, re.ASCII
            ):
                raise ValueError("each must be team:name or an e-mail address (ASCII, with 2 to 7 letters at its end)")
        return value

    @field_validator("tags")
    @classmethod
    def _tags(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        layers = ("all", "bronze", "silver", "gold", "own")
        if not set(value) <= set(layers):
            raise ValueError(f"must be by layer: {', '.join(layers)}")
        for tags in value.values():
            # Valid in Dagster and every catalog.
            if not all(
                re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", k) and re.fullmatch(r"[A-Za-z0-9_.-]{0,63}", v) for k, v in tags.items()
            ):
                raise ValueError("keys and values must be letters, digits, _ . -, at most 63 of them")
        return value

    @field_validator("catalog")
    @classmethod
    def _catalog(cls, value: str | None) -> str | None:
        # It becomes part of SQL statements.
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_]{1,100}(\.[A-Za-z0-9_]{1,100})?", value):
            raise ValueError("must be a database's name, or catalog.database: letters, digits, underscores")
        return value


class LimitSettings(SettingsGroup):
    """Limits of one record, one file, all games, and one query; docs/operations.md says what each does."""

    group: ClassVar[str] = "limits"

    # --- limits (docs/operations.md)
    max_record_bytes: int = Field(64 * 1024 * 1024, ge=1024, le=512 * 1024 * 1024)
    """bytes of one record; larger ones go to quarantine, truncated"""
    files_max_rows: int = Field(100_000_000, ge=1, le=2**32 - 1)
    """records (of JSON: lines) of one file; the rest of the file is one row of quarantine"""
    files_max_unpacked_bytes: int = Field(16 * 1024**3, ge=1)
    """bytes of a compressed file once decompressed; the rest of the file is one row of quarantine"""
    max_games: int = Field(2_000, ge=1)
    """above this number of games, a new name needs `NEW_GAME_MIN_ROWS` rows or the allow list"""
    new_game_min_rows: int = Field(1_000, ge=1)
    """rows in one pass that admit a new name above `MAX_GAMES`"""
    max_games_ever: int = Field(10_000, ge=1)
    """above this number of games (or `MAX_GAMES`, if larger), a new name needs the allow list, however many rows it has"""
    max_columns: int = Field(10_000, ge=100)
    """columns of bronze, nested ones counted: records of a type with more new columns are quarantined as `BAD_SCHEMA`"""
    max_unknown_ids: int = Field(1_000, ge=1)
    """schema ids unknown to the registry, after which no more are requested in one micro-batch: their records are quarantined
    as `UNKNOWN_SCHEMA`, too"""
    sql_memory_bytes: int = Field(4 * 1024**3, ge=64 * 1024**2)
    """bytes of memory of `game-events sql`; the rest goes to temporary files if possible, else the query fails"""
    sql_disk_bytes: int = Field(16 * 1024**3, ge=64 * 1024**2)
    """bytes of temporary files of `game-events sql`, below `TMPDIR`; a query that needs more fails"""


class DomainSettings(SettingsGroup):
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
    deduplicate: Annotated[tuple[Deduplicate, ...], AfterValidator(require_apart)] = ()
    """which rows of silver are the same event, sent twice: a list in YAML, JSON in the environment"""

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

    @field_validator("gold_columns")
    @classmethod
    def _gold_columns(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        wrong = problem(value, (info.data.get("key_column", ""), info.data.get("entity_column", "")))
        if wrong is not None:
            raise ValueError(wrong)
        return value


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
    `sasl.password`, `sasl.oauthbearer.*`, `ssl.ca.location`, ...), for driver and workers; never shown"""
    kafka_login: str = kafka_login.OPTIONS
    """login at the brokers: `options`: that of `KAFKA_OPTIONS`, if it has one; or a plug-in's: `msk_iam` (plug-in `msk`)"""
    schema_registry_url: str = "http://localhost:8081"
    """address of the Confluent-compatible registry"""
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
    decoding: dict[str, TopicDecoding] = Field(default_factory=dict)
    """topics whose records have no registry's frame, by name or by regular expression (an exact name wins, then the first that
    matches) -> `{format: protobuf|avro|json, schema: FILE|subject:NAME|header:NAME|key, ...}` (docs/decoding.md)"""
    source_table: Annotated[Address, AfterValidator(lambda path: path.rstrip("/"))] | None = None
    """another pipeline's `bronze_events` (path or URI), to read it instead of Kafka"""

    # --- data loss (docs/operations.md)
    on_data_loss: Literal["stop", "record_gap"] = "stop"
    """records that expired, or were deleted with their topic, before they were read: `stop`, or `record_gap`: continue and
    record the gap"""

    @field_validator("kafka_options")
    @classmethod
    def _supported_login(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        wrong = kafka_login.problem({name: secret.get_secret_value() for name, secret in value.items()})
        if wrong is not None:
            raise ValueError(wrong)
        return value

    @field_validator("kafka_login")
    @classmethod
    def _known_login(cls, value: str, info: ValidationInfo) -> str:
        logins = [kafka_login.OPTIONS, *(name for plugin in installed() for name in plugin.kafka_logins)]
        if value not in logins:
            raise ValueError(f"must be one of {', '.join(logins)}")
        given = [name for name in info.data.get("kafka_options", ()) if name == "security.protocol" or name.startswith("sasl.")]
        if value != kafka_login.OPTIONS and given:
            raise ValueError(f"is {value}, which sets {', '.join(sorted(given))}: leave these out of GAME_EVENTS_KAFKA_OPTIONS")
        return value

    @property
    def decoding_patterns(self) -> tuple[str, ...]:
        """The names in `decoding` that are regular expressions, and no topic's name."""
        return tuple(name for name in self.decoding if re.fullmatch(TOPIC_PATTERN, name) is None)

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

    @field_validator("decoding")
    @classmethod
    def _decoding(cls, value: dict[str, TopicDecoding]) -> dict[str, TopicDecoding]:
        return require_patterns(value, TOPIC_PATTERN)

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
        """Names of Kafka's topics, as the settings name them; empty for a pattern."""
        if self.kafka_topic_pattern is not None:
            return ()
        return tuple(self.kafka_assign) or split_names(self.kafka_topic)

    @property
    def topic_pattern(self) -> str:
        """Regular expression of the topics of which records may be read; of files all."""
        if self.source != FileSettings.model_fields["source"].default:
            return ".*"
        pattern = self.kafka_topic_pattern
        return "|".join(map(re.escape, self.kafka_topics)) if pattern is None else pattern

    def decoding_of(self, topic: str) -> TopicDecoding | None:
        """The entry of a topic: its own, else that of the first pattern that matches; None: its records have frames."""
        patterns = (name for name in self.decoding_patterns if re.fullmatch(name, topic))
        return self.decoding.get(topic if topic in self.decoding else next(patterns, topic))

    @property
    def produced_topic(self) -> str:
        """The topic that the simulator writes to: the first one."""
        return (self.kafka_topics or split_names(self.kafka_topic))[0]

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = {
            "KAFKA_TOPIC_PATTERN": self.kafka_topic_pattern,
            "KAFKA_ASSIGN": self.kafka_assign,
            "SOURCE_TABLE": self.source_table,
            f"SOURCE={self.source}": self.source != FileSettings.model_fields["source"].default,
        }
        given = [name for name, value in named.items() if value]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: set only one")
        return self
