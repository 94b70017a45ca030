"""Logins at the schema registry: user and password, a token, tokens of a token server, a certificate."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

from pydantic import SecretStr, field_validator, model_validator

from game_events.config.pipeline_settings import Receiver, SettingsGroup, refuse_credentials, require_http


class RegistryLoginSettings(SettingsGroup):
    """Login at the schema registry."""

    group: ClassVar[str] = "kafka"

    # --- login at the registry (docs/sources.md)
    schema_registry_user: str | None = None
    """user for the registry's basic authentication"""
    schema_registry_password: SecretStr | None = None
    """password for the registry's basic authentication"""
    schema_registry_token: SecretStr | None = None
    """a token for the registry, instead of user and password: sent as `Authorization: Bearer`"""
    schema_registry_token_url: str | None = None
    """token server (OAuth 2, client credentials) that gives tokens for the registry, instead of a fixed one"""
    schema_registry_client_id: str | None = None
    """client at `SCHEMA_REGISTRY_TOKEN_URL`"""
    schema_registry_client_secret: SecretStr | None = None
    """the client's secret"""
    schema_registry_scope: str = ""
    """scope of the tokens"""
    schema_registry_cluster: str = ""
    """with tokens: id of the registry at Confluent Cloud (`lsrc-...`), the header `target-sr-cluster`"""
    schema_registry_identity_pool: str | None = None
    """with tokens: identity pool at Confluent Cloud (`pool-...`)"""
    schema_registry_certificate_file: Path | None = None
    """PEM file of the certificate that this client shows the registry (mutual TLS); it may hold the key"""
    schema_registry_key_file: Path | None = None
    """PEM file of the certificate's key"""
    schema_registry_key_password: SecretStr | None = None
    """password of the key"""

    @field_validator("schema_registry_certificate_file", "schema_registry_key_file")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"{value} is not a file")
        return value

    @field_validator("schema_registry_token_url")
    @classmethod
    def _token_url(cls, value: str | None) -> str | None:
        if value is not None:
            require_http(SecretStr(value))
            refuse_credentials(value)
        return value

    @model_validator(mode="after")
    def _registry_login(self) -> Self:
        """One login at the registry, and all of it; a certificate goes with any."""
        named = {
            "SCHEMA_REGISTRY_USER": self.schema_registry_user,
            "SCHEMA_REGISTRY_TOKEN": self.schema_registry_token,
            "SCHEMA_REGISTRY_TOKEN_URL": self.schema_registry_token_url,
        }
        given = [name for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: set only one")
        of_client = {
            "SCHEMA_REGISTRY_TOKEN_URL": self.schema_registry_token_url,
            "SCHEMA_REGISTRY_CLIENT_ID": self.schema_registry_client_id,
            "SCHEMA_REGISTRY_CLIENT_SECRET": self.schema_registry_client_secret,
        }
        missing = [name for name, value in of_client.items() if value is None]
        if 0 < len(missing) < len(of_client):
            raise ValueError(f"{', '.join(name for name in of_client if name not in missing)} needs {' and '.join(missing)}")
        of_key = self.schema_registry_key_file or self.schema_registry_key_password
        if of_key and self.schema_registry_certificate_file is None:
            raise ValueError("SCHEMA_REGISTRY_KEY_FILE and SCHEMA_REGISTRY_KEY_PASSWORD need SCHEMA_REGISTRY_CERTIFICATE_FILE")
        return self

    def receivers(self) -> Iterable[Receiver]:
        """The token server of the registry."""
        return [Receiver("SCHEMA_REGISTRY_TOKEN_URL", self.schema_registry_token_url, "the client's secret")]
