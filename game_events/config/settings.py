"""Every setting of the system, typed and frozen.

Sources, first wins: arguments, environment ``GAME_EVENTS_*``, ``.env``, files of the folder ``GAME_EVENTS_SECRETS_DIR`` (one
for each setting, as Docker and Kubernetes mount secrets), a YAML file (``game_events.yaml``, or the one named
by ``GAME_EVENTS_CONFIG``), the addresses of a running local stack, defaults.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from game_events.config.export_settings import ExportSettings
from game_events.config.gold_columns import problem
from game_events.config.naming import Names
from game_events.config.producer import SampleData
from game_events.config.settings_sources import LocalStackSource, WithoutEmptiedMappings
from game_events.config.source_settings import NameList, SourceSettings, refuse_credentials
from game_events.errors import ConfigurationError
from game_events.rules import Rule, require_unique

ENV_PREFIX = "GAME_EVENTS_"
#: Ids can be guessed one by one: only the key protects their hashes.
MIN_ERASURE_KEY_CHARS = 16

SETTING = "GAME_EVENTS_ON_DATA_LOSS"


class Settings(SourceSettings, ExportSettings):
    """Settings of one pipeline; docs/reference/settings.md lists all of them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=".env", extra="ignore", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    # --- continuous mode (docs/continuous.md)
    poll_interval_s: float = Field(
        1.0, ge=0.05, le=60, description="seconds between two polls of the topic; cycles start no more often"
    )
    gold_interval_s: float = Field(
        10.0,
        ge=0,
        description="seconds between two refreshes of gold and the unified table; `0`: in each cycle. A triggered run "
        "always refreshes them",
    )

    continuous_run_h: float = Field(24.0, gt=0, description="hours after which a continuous run ends and a new one takes over")
    run_history_h: float = Field(
        168.0, gt=0, description="hours that ended runs stay in Dagster's storage; their results stay in `event_log`"
    )

    # --- tables
    lakehouse: str = Field("lakehouse", min_length=1, description="root path or URI of the tables (`s3://bucket/prefix`)")
    games: NameList = Field((), description="allow list, comma separated; empty: every game")
    keep_raw: Literal["all", "failures"] = Field(
        "all",
        description="raw values in bronze: `all`, or `failures`: only in quarantine and for types that `MESSAGE_TYPES` "
        "leaves out",
    )

    # --- maintenance (docs/maintenance.md)
    retention_h: float = Field(
        2.0, gt=0, description="hours that replaced files and log entries of bronze, silver, quarantine and the logs are kept"
    )
    derived_retention_h: float = Field(0.5, gt=0, description="the same for gold, the unified table and `progress`")
    orphan_retention_h: float = Field(
        168, ge=1, description="hours that files are kept which no commit names (left by crashes)"
    )

    # --- object store (docs/object-store.md)
    # Credentials are read from the environment or the provider's own files, never from settings.
    storage_endpoint: str | None = Field(
        None, description="address of an S3-compatible store; else `AWS_ENDPOINT_URL`, else AWS's own"
    )
    storage_region: str | None = Field(None, description="region of the store; else `AWS_REGION`")
    storage_path_style: bool = Field(True, description="with an endpoint: the bucket is in the path, not in the host name")
    storage_allow_http: bool = Field(False, description="allow plain HTTP to a store on another machine")

    # --- owners, catalog, lineage (docs/discovery.md)
    owners: NameList = Field((), description="owners of all tables: `team:name` or an e-mail address, comma separated")
    tags: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description='layer (`bronze`, `silver`, `gold`, `own`; `all`) -> tags of its tables: `{"all": {"domain": '
        '"games"}, "gold": {"pii": "no"}}`',
    )
    catalog: str | None = Field(
        None, description="database (`name` or `catalog.name`) of Spark's catalog in which every table is registered"
    )
    openlineage_url: str | None = Field(None, description="address of an OpenLineage receiver; without it no events are sent")
    openlineage_endpoint: str = Field("api/v1/lineage", description="path below that address that takes events")
    openlineage_api_key: SecretStr | None = Field(None, description="bearer token for the receiver; never shown")
    openlineage_namespace: str = Field("game_events", min_length=1, description="namespace of the jobs")
    openlineage_timeout_s: float = Field(
        10.0, gt=0, le=300, description="seconds that a run spends on sending its events at most"
    )

    # --- full refresh (docs/refresh.md)
    allow_bronze_full_refresh: bool = Field(
        False, description="whether a full refresh may replace bronze; records that Kafka has expired are lost by it"
    )

    # --- erasure (docs/erasure.md)
    erasure_key: SecretStr | None = Field(
        None,
        description="secret of 16 characters or more, with which ids of erased data subjects are hashed; keep it for "
        "ever; never shown",
    )
    erasure_key_file: Path | None = Field(None, description="a file that holds the erasure key, instead of `ERASURE_KEY`")

    # --- the domain: what the message's columns mean (docs/domains.md)
    entity_column: str = Field("game_name", description="column that names the game: one silver and gold table for each value")
    key_column: str = Field("gamer_id", description="column that gold aggregates by")
    time_column: str = Field("event_timestamp", description="column with the event time: gold keeps its minimum and maximum")
    gold_columns: dict[str, str] = Field(
        default_factory=dict,
        description="gold's columns beside the key: name -> SQL aggregate; empty: `session_count`, `min_timestamp`, "
        "`max_timestamp`",
    )
    names: Names = Field(
        default_factory=Names, description="prefix and nouns in names of tables and assets, and in texts (docs/domains.md)"
    )
    producer: SampleData = Field(
        default_factory=SampleData, description="the message and sample data of `produce` and `demo`; default: the game event"
    )

    # --- checks on tables (docs/observability.md)
    freshness_s: int = Field(
        93_600, ge=0, description="maximum age of bronze's last commit of records, in seconds; `0`: not checked"
    )

    # --- data quality (docs/quality.md)
    rules: tuple[Rule, ...] = Field(
        (), description="expectations of silver and gold rows: a list in YAML, JSON in the environment"
    )

    # --- extensions (docs/extending.md)
    extensions: NameList = Field(
        (),
        description="modules or `.py` files with user-defined rules, silver transformations and gold aggregates, comma "
        "separated",
    )

    # --- Spark (docs/cluster.md)
    spark_master: str = Field("local[*]", description="Spark master, unless `SPARK_REMOTE` is set")
    spark_remote: str | None = Field(None, description="`sc://host:port` of a Spark Connect server, instead of a master")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")
    spark_driver_memory: str = Field(
        "1g", pattern=r"^\d+[mg]$", description="heap of the Spark driver's JVM: a number with `m` or `g`"
    )
    spark_ship_code: Literal["auto", "always", "never"] = Field(
        "auto",
        description="send this project's code to Spark's workers: `auto` (to those of other machines), `always`, `never`",
    )
    spark_py_files: NameList = Field(
        (), description="`.py` and `.zip` files that extensions import, sent to the workers too, comma separated"
    )
    warm_spark: bool = Field(
        True, description="`game-events up`: all runs share one Spark Connect server; `False`: each run starts a JVM"
    )

    # --- retries and alerts (docs/alerts.md)
    mode: Literal["production", "development"] = Field(
        "production", description="`production` retries transient errors; `development` fails at the first error"
    )
    max_retries: int = Field(3, ge=0, le=20, description="times a run's step is retried after a transient error")
    retry_delay_s: float = Field(2.0, gt=0, description="seconds before the first retry; doubled each time, at most 300")
    alert_webhook_url: SecretStr | None = Field(None, description="where alerts are POSTed; may hold a token, never shown")
    alert_severity: dict[str, Literal["error", "warning", "none"]] = Field(
        default_factory=dict, description="name of a check -> severity of its alerts (`error`, `warning`; `none`: no alerts)"
    )
    alert_lag_records: int = Field(0, ge=0, description="records of lag that raise an alert; 0: no such alert")
    dagster_url: str | None = Field(
        None,
        description="address of the Dagster UI, for links in alerts; also the one name besides this machine's own under "
        "which `game-events up` answers",
    )

    # --- TLS: certificates are always verified (docs/security.md)
    tls_ca_file: Path | None = Field(
        None,
        description="PEM file of the authorities that certificates of the registry, the webhook and `REST_URL` are "
        "verified with",
    )

    # --- access to the Dagster UI (docs/security.md)
    job_places: NameList = Field(
        (),
        description="folders and prefixes that jobs started in the UI may archive to or send files of, comma separated; "
        "commands may use any",
    )
    ui_users: NameList = Field(
        (),
        description="further users of this machine (a proxy's) who may connect to the UI of `game-events up`, comma separated",
    )

    # --- this machine
    state_dir: Path = Field(Path(".game_events"), description="folder of the local stack's data and Dagster's storage")

    @field_validator("rules")
    @classmethod
    def _each_name_once(cls, value: tuple[Rule, ...]) -> tuple[Rule, ...]:
        require_unique(value)
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object, info: ValidationInfo) -> object:
        optional = value == "" and cls.model_fields[str(info.field_name)].default is None
        return None if optional else value

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

    @field_validator("alert_webhook_url", "rest_url")
    @classmethod
    def _webhook(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @field_validator("owners")
    @classmethod
    def _owners(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not re.fullmatch(r"team:[^\s\x00-\x1f]{1,100}|[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f]+\.[^@\s\x00-\x1f]+", owner):
                raise ValueError("each must be team:name or an e-mail address")
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

    @field_validator("openlineage_url")
    @classmethod
    def _receiver(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if value is not None and ("@" in urlsplit(value).netloc or urlsplit(value).query):
            raise ValueError("must hold no password or key: set GAME_EVENTS_OPENLINEAGE_API_KEY")
        return value.rstrip("/") if value is not None else None

    @field_validator("erasure_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_ERASURE_KEY_CHARS:
            raise ValueError(f"must have at least {MIN_ERASURE_KEY_CHARS} characters: `openssl rand -hex 32` makes a good one")
        return value

    @field_validator("tls_ca_file")
    @classmethod
    def _authorities(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"{value} is not a file")
        return value

    @field_validator("lakehouse")
    @classmethod
    def _root(cls, value: str) -> str:
        return refuse_credentials(value)

    @field_validator("schema_registry_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://", "mock://")):
            raise ValueError("must start with http:// or https://")
        # Errors, tables and Dagster's events name this address.
        if any("@" in urlsplit(url.strip()).netloc for url in value.split(",")):
            raise ValueError(
                "must hold no password: set GAME_EVENTS_SCHEMA_REGISTRY_USER and GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"
            )
        return value.rstrip("/")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order of the module's docstring."""
        yaml = YamlConfigSettingsSource(settings_cls, os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml"))
        merged = map(WithoutEmptiedMappings, (env_settings, dotenv_settings, file_secret_settings, yaml))
        return init_settings, *merged, LocalStackSource(settings_cls)


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401
    """Read and validate the settings.

    Raises:
        ConfigurationError: names each bad key, what is wrong with it and where to change it. Values are not repeated,
            as they may be secrets.
    """
    named = os.environ.get(ENV_PREFIX + "CONFIG")
    if named and not Path(named).is_file():
        raise ConfigurationError(f"{ENV_PREFIX}CONFIG names {named!r}, which is not a file")
    secrets = os.environ.get(ENV_PREFIX + "SECRETS_DIR") or None
    if secrets and not Path(secrets).is_dir():
        raise ConfigurationError(f"{ENV_PREFIX}SECRETS_DIR names {secrets!r}, which is not a folder")
    try:
        return Settings(_secrets_dir=secrets, **overrides)
    except (SettingsError, YAMLError, ValueError, UnicodeDecodeError) as error:
        if not isinstance(error, ValidationError):
            raise _unreadable(error) from None
        lines = [
            # An error of several settings together has no name.
            f"  {ENV_PREFIX}{'.'.join(str(part) for part in e['loc']).upper() or '*'}: {e['msg']}"
            for e in error.errors(include_input=False, include_url=False)
        ]
        where = "environment, .env or game_events.yaml"
        raise ConfigurationError("\n".join([f"bad settings (from {where}):", *lines])) from None


def _unreadable(error: Exception) -> ConfigurationError:
    """Error for an unreadable settings source, without its content, which may hold secrets."""
    field = re.search(r'field "(\w+)"', str(error))
    if isinstance(error, SettingsError) and field:
        return ConfigurationError(f"{ENV_PREFIX}{field[1].upper()} is not valid JSON")
    named = os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml")
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return ConfigurationError(f"settings file {named}{where} cannot be read: it must be YAML with one `name: value` a line")
