"""Settings of the tables: root, content, maintenance, storage, erasure, limits."""

import re
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from game_events.config.groups.values import Address, NameList

#: Ids can be guessed one by one: only the key protects their hashes.
MIN_ERASURE_KEY_CHARS = 16


class TableSettings(BaseSettings):
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

    # --- maintenance (docs/maintenance.md)
    retention_h: float = Field(2.0, gt=0)
    """hours that replaced files and log entries of bronze, silver, quarantine and the logs are kept"""
    derived_retention_h: float = Field(0.5, gt=0)
    """the same for gold, the unified table and `progress`"""
    orphan_retention_h: float = Field(168, ge=1)
    """hours that files are kept which no commit names (left by crashes)"""

    # --- full refresh (docs/refresh.md)
    allow_bronze_full_refresh: bool = False
    """whether a full refresh may replace bronze; records that Kafka has expired are lost by it"""

    # --- erasure (docs/erasure.md)
    erasure_key: SecretStr | None = None
    """secret of 16 characters or more, with which ids of erased data subjects are hashed; keep it for ever; never shown"""
    erasure_key_file: Path | None = None
    """a file that holds the erasure key, instead of `ERASURE_KEY`"""

    @field_validator("erasure_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_ERASURE_KEY_CHARS:
            raise ValueError(f"must have at least {MIN_ERASURE_KEY_CHARS} characters: `openssl rand -hex 32` makes a good one")
        return value


class StorageSettings(BaseSettings):
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


class DiscoverySettings(BaseSettings):
    """Owners, tags, catalog and lineage of the tables."""

    group: ClassVar[str] = "discovery"

    # --- owners, catalog, lineage (docs/discovery.md)
    owners: NameList = ()
    """owners of all tables: `team:name` or an e-mail address, comma separated"""
    tags: dict[str, dict[str, str]] = Field(default_factory=dict)
    """layer (`bronze`, `silver`, `gold`, `own`; `all`) -> tags of its tables: `{"all": {"domain": "games"}, "gold": {"pii":
    "no"}}`"""
    catalog: str | None = None
    """database (`name` or `catalog.name`) of Spark's catalog in which every table is registered"""
    openlineage_url: str | None = None
    """address of an OpenLineage receiver; without it no events are sent"""
    openlineage_endpoint: str = "api/v1/lineage"
    """path below that address that takes events"""
    openlineage_api_key: SecretStr | None = None
    """bearer token for the receiver; never shown"""
    openlineage_namespace: str = Field("game_events", min_length=1)
    """namespace of the jobs"""
    openlineage_timeout_s: float = Field(10.0, gt=0, le=300)
    """seconds that a run spends on sending its events at most"""

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

    @field_validator("openlineage_url")
    @classmethod
    def _receiver(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if value is not None and ("@" in urlsplit(value).netloc or urlsplit(value).query):
            raise ValueError("must hold no password or key: set GAME_EVENTS_OPENLINEAGE_API_KEY")
        return value.rstrip("/") if value is not None else None


class LimitSettings(BaseSettings):
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
