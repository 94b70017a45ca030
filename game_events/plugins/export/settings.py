"""Settings of the export over HTTP."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from game_events.config.masking import login_secrets, secret_parts, value_of
from game_events.config.pipeline_settings import Receiver, SecretUrl, SettingsGroup


class ExportSettings(SettingsGroup):
    """Target, size, rate, authentication and retries of calls."""

    group: ClassVar[str] = "rest"

    # --- export over HTTP (docs/export.md)
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
    """Spark tasks that send at the same time; with a rate limit one task makes the calls of all"""
    rest_calls_per_task: int = Field(8, ge=1, le=1_000)
    """concurrent calls of each task"""
    rest_calls_per_s: int = Field(0, ge=0)
    """calls in any second; 0: no limit"""
    rest_calls_per_min: int = Field(0, ge=0)
    """calls in any minute; 0: no limit"""
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
    """attempts of a call before it has failed"""
    rest_retry_delay_s: float = Field(0.5, gt=0, le=60)
    """seconds before the second attempt; doubled each time, at most 60"""
    rest_preflight: str = Field("OPTIONS", pattern=r"^((OPTIONS|HEAD|GET)( /\S*)?)?$")
    """method (and path, if another one) of a call before the first batch; empty: none"""
    rest_on_replaced: Literal["hold", "resend", "go_on"] = "hold"
    """tables with replaced rows: `hold` them, `resend` all rows, or `go_on` with new rows only"""

    def further_secrets(self) -> Iterator[str]:
        """Parts of the address; the login of basic authentication."""
        yield from secret_parts(value_of(self.rest_url) or "")
        yield from login_secrets(self.rest_user, self.rest_password)

    def receivers(self) -> Iterator[Receiver]:
        """The receiver of the rows."""
        yield Receiver("REST_URL", value_of(self.rest_url), "rows, and what logs in to their receiver")
