"""Settings of runs: Spark, continuous mode, retries, alerts, the UI, the export over HTTP."""

import ssl
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from game_events.config.groups.values import NameList, SecretUrl


class SparkSettings(BaseSettings):
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


class RunSettings(BaseSettings):
    """Continuous mode, retries, alerts, the UI, this machine."""

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
    alert_webhook_url: SecretUrl | None = None
    """where alerts are POSTed; may hold a token, never shown"""
    alert_severity: dict[str, Literal["error", "warning", "none"]] = Field(default_factory=dict)
    """name of a check -> severity of its alerts (`error`, `warning`; `none`: no alerts)"""
    alert_lag_records: int = Field(0, ge=0)
    """records of lag that raise an alert; 0: no such alert"""
    dagster_url: str | None = None
    """address of the Dagster UI, for links in alerts; also the one name besides this machine's own under which `game-events up`
    answers"""

    # --- TLS: certificates are always verified (docs/security.md)
    tls_ca_file: Path | None = None
    """PEM file of the authorities that certificates of the registry, the webhook and `REST_URL` are verified with"""

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


class ExportSettings(BaseSettings):
    """Target, size, rate, authentication and retries of calls."""

    group: ClassVar[str] = "rest"

    # --- export over HTTP (docs/rest-export.md)
    rest_url: SecretUrl | None = None
    """where rows are POSTed; without it nothing is exported; may hold a token, never shown"""
    rest_source: Literal["silver", "gold"] = "silver"
    """which rows are exported: of `silver` or of `gold`"""
    rest_rows_per_call: int = Field(100, ge=1, le=100_000)
    """rows of one call at most"""
    rest_bytes_per_call: int = Field(1_000_000, ge=1_000)
    """bytes of one call's body at most, unless a single row has more"""
    rest_body: Literal["array", "object"] = "array"
    """a JSON `array` of rows, or the row as an `object` (with one row per call)"""
    rest_tasks: int = Field(4, ge=1, le=1_000)
    """Spark tasks that send at the same time"""
    rest_calls_per_task: int = Field(8, ge=1, le=1_000)
    """concurrent calls of each task"""
    rest_calls_per_s: int = Field(0, ge=0)
    """calls in any second, all tasks together; 0: no limit"""
    rest_calls_per_min: int = Field(0, ge=0)
    """calls in any minute, all tasks together; 0: no limit"""
    rest_permit_host: str | None = None
    """name or address of this machine under which executors reach the rate limiter; only with a rate limit"""
    rest_bearer_token: SecretStr | None = None
    """authentication by `Authorization: Bearer ...`"""
    rest_user: str | None = None
    """user for basic authentication"""
    rest_password: SecretStr | None = None
    """password for basic authentication"""
    rest_api_key: SecretStr | None = None
    """authentication by the header `REST_API_KEY_HEADER`"""
    rest_api_key_header: str = Field("X-API-Key", pattern=r"^[A-Za-z0-9-]{1,64}$")
    """name of the header that holds `REST_API_KEY`"""
    rest_timeout_s: float = Field(30.0, gt=0, le=3_600)
    """seconds that one call may take"""
    rest_max_attempts: int = Field(8, ge=1, le=100)
    """attempts of a call before its chunk has failed"""
    rest_retry_delay_s: float = Field(0.5, gt=0, le=60)
    """seconds before the second attempt; doubled each time, at most 60"""
    rest_preflight: str = Field("OPTIONS", pattern=r"^((OPTIONS|HEAD|GET)( /\S*)?)?$")
    """method (and path, if another one) of a call before the first batch; empty: none"""
    rest_on_replaced: Literal["hold", "resend", "go_on"] = "hold"
    """tables with replaced rows: `hold` them, `resend` all rows, or `go_on` with new rows only"""
