"""Settings of the catalog in which tables are registered, and of the lineage that is sent to an OpenLineage receiver."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from game_events.config.pipeline_settings import Receiver, SettingsGroup

#: Layers of grants; `gold` are the tables of one game each, `unified` those of all.
GrantLayer = Literal["bronze", "silver", "gold", "unified", "own"]

#: Layers whose tables have rows of all games.
OF_ALL_GAMES = frozenset({"bronze", "unified", "own"})

EVERY_GAME = ("*",)

#: A user or group. Names go into requests and statements: no control characters.
Principal = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_*?\[\]!-]+$")]


class Grant(BaseModel):
    """Who may do what with the tables of some layers and games.

    Attributes:
        layers: of the tables.
        games: patterns of games (`poker_*`); default: all.
        to: users or groups, as the catalog calls them.
        privileges: what they may do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    layers: tuple[GrantLayer, ...] = Field(min_length=1)
    games: tuple[Pattern, ...] = Field(EVERY_GAME, min_length=1)
    to: tuple[Principal, ...] = Field(min_length=1)
    privileges: tuple[Literal["SELECT", "MODIFY"], ...] = Field(("SELECT",), min_length=1)

    @model_validator(mode="after")
    def _tables_can_be_told_apart(self) -> Self:
        wide = sorted(OF_ALL_GAMES.intersection(self.layers))
        if wide and self.games != EVERY_GAME:
            raise ValueError(
                f"tables of {', '.join(wide)} have rows of all games: leave `games` out, or give them an entry of their own"
            )
        return self

    def is_for(self, game: str) -> bool:
        """Whether it is for a game's tables."""
        return any(fnmatchcase(game, pattern) for pattern in self.games)


class CatalogSettings(SettingsGroup):
    """Unity Catalog, views and grants; receiver of lineage events."""

    group: ClassVar[str] = "discovery"

    # --- catalogs (docs/catalogs.md)
    unity_url: str | None = None
    """address of a Unity Catalog server: `CATALOG` (`catalog.schema`) is one of its schemas; else one of Spark's catalogs"""
    unity_token: SecretStr | None = None
    """token for that server; never shown"""
    catalog_views: Literal["types"] | None = None
    """`types`: each message type of a game is a view in the catalog, too (of those of Spark)"""
    grants: tuple[Grant, ...] = ()
    """who may do what in Unity Catalog: `[{"layers": ["gold"], "games": ["rummy"], "to": ["analysts"], "privileges":
    ["SELECT"]}]`"""

    # --- lineage (docs/lineage.md)
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

    @field_validator("unity_url")
    @classmethod
    def _server(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must start with http:// or https://")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("must hold no password or key: set GAME_EVENTS_UNITY_TOKEN")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _catalog_can_do_it(self) -> Self:
        if self.unity_url is not None:
            catalog = getattr(self, "catalog", None)
            if catalog is None or "." not in catalog:
                raise ValueError("GAME_EVENTS_UNITY_URL needs GAME_EVENTS_CATALOG=catalog.schema, of a catalog of that server")
            if self.catalog_views is not None:
                raise ValueError(
                    "GAME_EVENTS_CATALOG_VIEWS is for Spark's catalogs (a Hive metastore): Unity Catalog's API cannot renew a "
                    "view, and Spark 4.0 cannot read one"
                )
        elif self.grants:
            raise ValueError(
                "GAME_EVENTS_GRANTS needs GAME_EVENTS_UNITY_URL: Spark's SQL has no GRANT, in a Hive metastore or elsewhere"
            )
        return self

    @field_validator("openlineage_url")
    @classmethod
    def _receiver(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if value is not None and ("@" in urlsplit(value).netloc or urlsplit(value).query):
            raise ValueError("must hold no password or key: set GAME_EVENTS_OPENLINEAGE_API_KEY")
        return value.rstrip("/") if value is not None else None

    def receivers(self) -> Iterator[Receiver]:
        """The catalog's server, and the receiver of lineage events."""
        yield Receiver("UNITY_URL", self.unity_url, "names of tables and principals, and the token of the catalog")
        yield Receiver("OPENLINEAGE_URL", self.openlineage_url, "lineage, and the token of its receiver")
