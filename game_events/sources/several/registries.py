"""The registries of several sources: schemas by ids that name their registry, where it is another one than the top level's.

Id 7 of two registries is two schemas: `us/7` is that of the registry which the source `us` names first. Sources with the same
registry share its ids. The registry of the top level (`SCHEMA_REGISTRY_URL`) has plain ids, whatever the order of the sources:
so the tables of a pipeline that had one source, and its registry, are as they were.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from game_events.config.settings import Settings
from game_events.config.sources.several import registry_names, settings_of_each
from game_events.decoding.frame import RegistrySchema, SchemaId, bare, named, registry_of
from game_events.errors import ConfigurationError, TransientError
from game_events.schema_registry import SchemaLookup, SubjectVersion
from game_events.sources.factory import class_of

T = TypeVar("T")


def subject_in(registry: str, subject: str) -> str:
    """A subject among those of all registries: a topic, from which it has its name, has no slash."""
    return f"{registry}/{subject}" if registry else subject


class SeveralRegistries(SchemaLookup):
    """Each registry under its name."""

    def __init__(self, settings: Settings, connect: Callable[[Settings], SchemaLookup]) -> None:
        """Connects at the first call, with the login of the first source of each registry."""
        self.registries = registry_names(settings)
        clients: dict[str, SchemaLookup] = {"": connect(settings)}
        self._lookups: dict[str, list[SchemaLookup]] = {}
        for name, one in settings_of_each(settings).items():
            registry = self.registries[name]
            is_first = registry not in self._lookups
            if is_first:
                clients[registry] = connect(one)
            lookup = class_of(one).lookup(one, lambda _, client=clients[registry]: client)  # type: ignore[misc]
            known = self._lookups.setdefault(registry, [])
            if lookup not in known:
                # What came with files is known without a request.
                known.insert(0 if lookup is not clients[registry] else len(known), lookup)
        self._lookups.setdefault("", [clients[""]])
        self.url = ", ".join(dict.fromkeys(client.url for name, client in clients.items() if name in self._lookups))

    def url_of(self, schema_id: SchemaId) -> str:
        """The address of an id's registry."""
        lookups = self._lookups.get(registry_of(schema_id))
        return lookups[0].url if lookups else f"of {registry_of(schema_id)}, which GAME_EVENTS_SOURCES does not name,"

    def fetch(self, schema_id: SchemaId) -> RegistrySchema | None:
        """See `SchemaRegistry.fetch`; None also of a source that the settings do not name (any more)."""
        registry = registry_of(schema_id)
        for lookup in self._lookups.get(registry, ()):
            schema = lookup.fetch(bare(schema_id))
            if schema is not None:
                return _in(registry, schema)
        return None

    def version_numbers(self, subject: str) -> list[int]:
        """See `SchemaLookup.version_numbers`; TransientError also for a refused login: the first unknown id tells of it."""
        _, lookup, name = self._of(subject)
        return _asked(lambda: lookup.version_numbers(name))

    def versions(self, subject: str) -> list[SubjectVersion]:
        """Likewise."""
        registry, lookup, name = self._of(subject)
        found = _asked(lambda: lookup.versions(name))
        return [SubjectVersion(subject, one.version, named(registry, one.schema_id)) for one in found]

    def newest(self, subject: str) -> tuple[int, SchemaId] | None:
        """See `SchemaLookup.newest`."""
        registry, lookup, name = self._of(subject)
        found = lookup.newest(name)
        return None if found is None else (found[0], named(registry, found[1]))

    def id_of(self, subject: str, version: int | None = None) -> SchemaId | None:
        """See `SchemaLookup.id_of`."""
        registry, lookup, name = self._of(subject)
        found = lookup.id_of(name, version)
        return None if found is None else named(registry, found)

    def subject_of(self, schema_id: SchemaId) -> str | None:
        """See `SchemaLookup.subject_of`."""
        registry = registry_of(schema_id)
        subjects = (lookup.subject_of(bare(schema_id)) for lookup in self._lookups.get(registry, ()))
        subject = next(filter(None, subjects), None)
        return None if subject is None else subject_in(registry, subject)

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Add schemas that came with records."""
        for schema in schemas:
            for lookup in self._lookups.get(registry_of(schema.schema_id), ()):
                lookup.offer([_in("", schema)])

    def _of(self, subject: str) -> tuple[str, SchemaLookup, str]:
        """Registry, its client, and the subject's name there."""
        registry, _, name = subject.partition("/")
        if not name or registry not in self._lookups:
            registry = ""
            name = subject
        return registry, self._lookups[registry][-1], name


def _asked(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except ConfigurationError as error:
        raise TransientError(str(error)) from error


def _in(registry: str, schema: RegistrySchema) -> RegistrySchema:
    """A schema under its id in a registry of this name."""
    inner = bare(schema.schema_id)
    return RegistrySchema(named(registry, inner), schema.format, schema.text, schema.references)
