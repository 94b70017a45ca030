"""Several sources of one bronze, by name: what each sets for itself, and the settings of each over those of the top level."""

import difflib
import re
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from game_events.config.pipeline_settings import FileSettings, SettingsGroup, SourceSettings
from game_events.config.sources.registry_login import RegistryLoginSettings

#: A source's name: part of keys, of names of assets and of variables of the environment.
NAME = r"[a-z0-9]+(_[a-z0-9]+)*"
MOST_CHARS = 63
#: The setting that the environment may give in parts.
PARTED = "sources"
#: Settings of the whole pipeline, not of a source: they are about one commit, all records, or another kind of source.
OF_ALL = frozenset({"source_table", "max_records_per_batch", "message_types", "on_data_loss"})
#: Settings that replace each other: a source that sets one of them takes no other one from the top level.
TOPICS = frozenset({"kafka_topic", "kafka_topic_pattern", "kafka_assign"})
STARTING = frozenset({"starting_offsets", "starting_timestamp"})
INSTEAD = (
    TOPICS,
    STARTING,
    frozenset({"kafka_options", "kafka_login"}),
    frozenset({"files_path", "files_schema", "files_message_type"}),
    frozenset(
        f"schema_registry_{name}" for name in ("user", "password", "token", "token_url", "client_id", "client_secret", "scope")
    ),
)
AnySettings = TypeVar("AnySettings", bound=BaseSettings)


class OneSource(SourceSettings, RegistryLoginSettings):
    """What one source sets; the names and rules are those of the settings of the same names."""

    # No group of settings: it is a value of one.
    group: ClassVar[str] = ""
    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the mapping has: the environment's names without a source are of the top level."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:  # noqa: ANN401 - as it was written
        unknown = sorted(set(values) - set(cls.model_fields)) if isinstance(values, dict) else []
        if unknown:
            near = difflib.get_close_matches(unknown[0], cls.model_fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{unknown[0]!r} is no setting of a source{hint}")
        return values

    @model_validator(mode="after")
    def _of_one_source(self) -> Self:
        of_all = sorted(self.model_fields_set & OF_ALL)
        if of_all:
            raise ValueError(f"{', '.join(of_all)} is of all sources together: set it outside of GAME_EVENTS_SOURCES")
        return self


class SeveralSettings(SettingsGroup):
    """Several sources of one bronze."""

    group: ClassVar[str] = "several"

    # --- several sources (docs/sources.md)
    sources: dict[str, OneSource] = Field(default_factory=dict)
    """several sources of one bronze: name -> those settings of Kafka, registry and files that are its own, in lower case; the
    others are those of the top level. Also one by one: `GAME_EVENTS_SOURCES__EU__KAFKA_OPTIONS`"""

    @field_validator("sources")
    @classmethod
    def _named(cls, value: dict[str, OneSource]) -> dict[str, OneSource]:
        wrong = [name for name in value if re.fullmatch(NAME, name) is None or len(name) > MOST_CHARS]
        if wrong:
            raise ValueError(f"a source's name has small letters, digits and single underscores, not {wrong[0]!r}")
        return value

    @model_validator(mode="after")
    def _one_list_of_files(self) -> Self:
        if not self.sources:
            return self
        if getattr(self, "source_table", None) is not None:
            raise ValueError("SOURCES and SOURCE_TABLE exclude each other: set only one")
        kinds: dict[str, str] = {}
        for name, one in settings_of_each(self).items():
            kind = str(getattr(one, "source", ""))
            other = kinds.setdefault(kind, name)
            if other != name and kind != FileSettings.model_fields["source"].default:
                raise ValueError(f"SOURCES: {other} and {name} are both {kind}: only one may be, as there is one list of them")
        return self


def settings_of_each(settings: AnySettings) -> dict[str, AnySettings]:
    """Name of a source -> its settings: its own over those of the top level; empty without `sources`."""
    sources: dict[str, OneSource] = getattr(settings, "sources", {})
    return {name: settings.model_copy(update=_own(one)) for name, one in sources.items()}


def settings_by_source(settings: AnySettings) -> dict[str, AnySettings]:
    """As `settings_of_each`; without `sources` the one that there is, which has no name."""
    return settings_of_each(settings) or {"": settings}


def settings_or_each(settings: AnySettings) -> list[AnySettings]:
    """The settings of each source; of the one that there is without `sources`."""
    return list(settings_by_source(settings).values())


def registry_names(settings: SourceSettings) -> dict[str, str]:
    """Source -> name of its registry in ids of schemas: empty for that of the top level, else its first source's name.

    Whatever the order of the sources: ids of the top level's registry are as they were before there were several.
    """
    first: dict[str, str] = {settings.schema_registry_url: ""}
    return {name: first.setdefault(one.schema_registry_url, name) for name, one in settings_of_each(settings).items()}


def _own(one: OneSource) -> dict[str, Any]:
    """Name -> value of what a source sets, and the defaults of what that replaces."""
    own = one.model_fields_set
    defaults = OneSource.model_fields
    replaced = {name for group in INSTEAD if own & group for name in group - own}
    if "source" in own and one.source != FileSettings.model_fields["source"].default:
        # What the top level says of topics is not meant for files.
        replaced |= TOPICS | (STARTING - own)
    values = {name: defaults[name].get_default(call_default_factory=True) for name in replaced}
    return values | {name: getattr(one, name) for name in own} | {"sources": {}}


def is_of_source(name: str) -> bool:
    """Whether a variable of the environment, in lower case and without its prefix, is a setting of one source."""
    setting, *inner = name.split("__")
    return setting == PARTED and len(inner) > 1 and inner[1] in OneSource.model_fields
