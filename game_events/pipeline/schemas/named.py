"""Schemas that the setting `decoding`, or records of its topics, name: which ids they stand for now. Runs in the driver."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from game_events.config.sources.schema_names import SUBJECT
from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import IndexPath, Reason, SchemaId, named, registry_of_source
from game_events.decoding.projection import CompiledSchema
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.unframed import cloudevents
from game_events.decoding.unframed.files import schema_of_file
from game_events.decoding.unframed.inferred import inferred_id
from game_events.decoding.unframed.topics import FILE, ID, SETTING, SchemaName, TopicPlan, TopicRule, TopicRules
from game_events.errors import ConfigurationError, DataError, TransientError, first_few
from game_events.lakehouse.data.columns import StoredType
from game_events.schema_registry import SchemaLookup

if TYPE_CHECKING:
    from game_events.pipeline.schemas.catalog import SchemaCatalog

#: Seconds for which an answer holds: of a name in the settings, of one in records (there may be many).
ANSWER_S = 5.0
RECORDS_S = 60.0
#: Message types that an error names.
TYPES_NAMED = 20
Refusal = tuple[Reason, str]


class NamedSchemas:
    """Names of schemas, with the answers of the registry and of files."""

    def __init__(self, rules: TopicRules, registry: SchemaLookup, catalog: SchemaCatalog) -> None:
        self.rules = rules
        self._registry = registry
        self._catalog = catalog
        self._formats = {rule.name: rule.format for rule in rules.all if rule.name is not None}
        self._keys: dict[SchemaName, TypeKey] = {}
        self._refused: dict[SchemaName, Refusal] = {}
        self._until: dict[SchemaName, float] = {}

    def types_of(self, topics: Iterable[tuple[str, str]]) -> list[TypeKey]:
        """Types to plan for before the first record of these topics, each with its source.

        Raises:
            ConfigurationError: a rule names a file or a subject that is not there, or that does not fit the rule.
            TransientError: the registry does not answer.
        """
        types: list[TypeKey] = []
        for source, topic in sorted(set(topics)):
            rule = self.rules.of(topic, source)
            if rule is None:
                continue
            if rule.cloudevents:
                types.append((cloudevents.TYPE_ID, ()))
            if rule.schema is None:
                types.append((inferred_id(topic), ()))
            elif rule.name is not None:
                name = rule.name.within(registry_of_source(source, self._catalog.registries))
                self.require(topic, rule, name)
                types += [self._keys[name]] if name in self._keys else []
        return types

    def types_of_stored(self, stored: StoredType) -> list[TypeKey]:
        """Types that rows of a topic get by its rule, if they have no frames, as far as there is an answer."""
        rule = self.rules.of(stored.topic, stored.source)
        if rule is None:
            return []
        types: list[TypeKey] = [(cloudevents.TYPE_ID, ())] if rule.cloudevents else []
        if rule.schema is None:
            types.append((inferred_id(stored.topic), ()))
        elif rule.name is not None:
            name = rule.name.within(registry_of_source(stored.source, self._catalog.registries))
            if name.follows_rows and isinstance(stored.schema_id, int):
                name = name._replace(stored=stored.schema_id)
            # Perhaps no row needs it; else it is looked up once it is reported.
            with suppress(TransientError, ConfigurationError):
                self._answer(name)
            types += [self._keys[name]] if name in self._keys else []
        return types

    def described(self, name: str, rule: TopicRule, registry: str) -> str:
        """What is used for a topic, or topics of a pattern, after a try; raises as `types_of`. `registry`: of its source."""
        text = f"{name}: {rule}"
        if rule.name is None:
            return text if rule.schema is not None else f"{text}, columns are inferred"
        schema = rule.name.within(registry)
        if self.require(name, rule, schema) is None:
            refused = self._refused.get(schema)
            why = refused[1] if refused is not None else "its newest version does not compile"
            return f"{text}: {why}: records are quarantined as BAD_SCHEMA"
        schema_id, path = self._keys[schema]
        return f"{text}: schema id {schema_id}, {self._catalog.require(schema_id).name_of(path) or 'no name'}"

    def require(self, topic: str, rule: TopicRule, name: SchemaName) -> CompiledSchema | None:
        """The schema of a topic's rule; None: a version of the registry that cannot be used; raises as `types_of`."""
        self._answer(name)
        refused = self._refused.get(name)
        if refused is not None and (refused[0] is Reason.UNKNOWN_SCHEMA or name.schema.startswith(FILE)):
            raise ConfigurationError(f"{SETTING}: {topic}: {refused[1]}")
        compiled = self._catalog.compiled(self._keys[name][0]) if refused is None else None
        if isinstance(compiled, DataError):
            if name.schema.startswith(FILE):
                raise ConfigurationError(f"{SETTING}: {topic}: {name.schema.removeprefix(FILE)}: {compiled}")
            return None
        if compiled is not None and _format_of(compiled) != rule.format:
            raise ConfigurationError(
                f"{SETTING}: {topic}: `format` is {rule.format.lower()}, but {name.schema} is {_format_of(compiled).lower()}"
            )
        return compiled

    def look_up(self, names: Collection[SchemaName], room: int) -> int:
        """Find out what names stand for, until `room` are found to be unknown; returns the number of unknown ones."""
        missed = 0
        for name in sorted(names, key=str):
            if missed >= room:
                break
            self._answer(name)
            missed += name in self._refused
        return missed

    def plan(self, rest: str | None, room: int) -> TopicPlan:
        """What workers need of it; `rest`: why other names are unknown, if they are. Unknown names are forgotten in time."""
        now = time.monotonic()
        self._refused = {name: refusal for name, refusal in self._refused.items() if now < self._until[name]}
        self._until = {name: until for name, until in self._until.items() if name in self._keys or name in self._refused}
        return TopicPlan(self.rules, dict(self._keys), dict(self._refused), rest, room)

    def _answer(self, name: SchemaName) -> None:
        """Have the answer for a name, not older than it may be; TransientError: the registry does not answer."""
        now = time.monotonic()
        if now < self._until.get(name, 0.0):
            return
        try:
            schema_id = self._id_of(name)
        except TransientError:
            if name not in self._keys:
                raise
            return  # the last answer
        self._keys.pop(name, None)
        self._refused.pop(name, None)
        if schema_id is None:
            self._refused[name] = (Reason.UNKNOWN_SCHEMA, self._no_such(name))
        else:
            self._take(name, schema_id)
        self._until[name] = now + (ANSWER_S if name._replace(registry="") in self._formats else RECORDS_S)

    def _take(self, name: SchemaName, schema_id: SchemaId) -> None:
        compiled = self._catalog.compiled(schema_id)
        path = path_of(compiled, name.message_type)
        if path is not None:
            self._keys[name] = (schema_id, path)
        elif isinstance(compiled, ProtobufSchema):
            types = first_few(sorted(compiled.type_paths()), TYPES_NAMED, ", ")
            detail = f"schema id {schema_id} ({name.schema}) has no message {name.message_type!r}; it has {types}"
            self._refused[name] = (Reason.BAD_SCHEMA, detail)

    def _id_of(self, name: SchemaName) -> SchemaId | None:
        """The id that a name stands for; None: there is no such subject or version."""
        kind, _, value = name.schema.partition(":")
        if f"{kind}:" == FILE:
            return self._of_file(Path(value), self._formats[name])
        if f"{kind}:" == ID:
            written: SchemaId = int(value) if value.isdigit() else value
            # A GUID may be that of a file, which is of no registry.
            return written if self._catalog.is_known(written) and not value.isdigit() else named(name.registry, written)
        subject, _, version = value.partition("@")
        subject = f"{name.registry}/{subject}" if name.registry else subject
        stored = None if name.stored is None else named(name.registry, name.stored)
        if stored is not None and stored in self._catalog.ids_of(subject):
            return stored
        return self._registry.id_of(subject, int(version) if version else None)

    def _of_file(self, path: Path, kind: str) -> SchemaId:
        try:
            schema = schema_of_file(path, kind)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{SETTING}: {path} cannot be read: {error}") from None
        self._catalog.add(schema)
        return schema.schema_id

    def _no_such(self, name: SchemaName) -> str:
        named = name.schema.removeprefix(SUBJECT)
        subject, _, version = named.partition("@")
        what = f"no version {version} of subject {subject!r}" if version else f"no subject {subject!r}"
        return f"the registry {self._registry.url} has {what}"


def path_of(compiled: CompiledSchema | DataError | None, message_type: str | None) -> IndexPath | None:
    """The index path of a message type in a schema; None: it has no such type."""
    if not isinstance(compiled, ProtobufSchema):
        return ()
    return (0,) if message_type is None else compiled.type_paths().get(message_type)


def _format_of(compiled: CompiledSchema) -> str:
    return type(compiled).__name__.removesuffix("Schema").upper()
