"""Schemas of records in files: from the file's own header, from a file that a setting names, or from the registry.

A schema without a registry id gets a GUID derived from its text. Records carry it in the header `__value_schema_id`, as with
Confluent's serializers, and the table `schemas` keeps the text, so that replay, redecode and erasure work on records of files.
"""

from collections.abc import Iterable
from pathlib import Path

from game_events.config.settings import Settings
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import IndexPath, RegistrySchema, SchemaId, schema_guid
from game_events.decoding.protobuf.schema import ProtobufSchema, imports
from game_events.errors import ConfigurationError, DataError
from game_events.plugins.files.location import UNKNOWN
from game_events.plugins.files.records import NamedSchema, identity_bytes
from game_events.schema_registry import SchemaLookup, SchemaRegistry, SubjectVersion

#: Suffix of a schema file -> its format.
_KINDS = {".proto": "PROTOBUF", ".json": "JSON", ".avsc": "AVRO"}
SUBJECT = "subject:"
SETTING = "GAME_EVENTS_FILES_SCHEMA"


def named_schema(settings: Settings, registry: SchemaRegistry) -> NamedSchema | None:
    """The schema of the settings, if they name one.

    Raises:
        ConfigurationError: there is no such file, subject or message type, or the text does not compile.
        TransientError: the registry does not answer.
    """
    if settings.files_schema is None:
        return None
    of_registry = settings.files_schema.startswith(SUBJECT)
    schema = _from_subject(settings.files_schema, registry) if of_registry else _from_file(settings)
    try:
        compiled = compile_schema(schema)
    except DataError as error:
        raise ConfigurationError(f"{SETTING}: {settings.files_schema}: {error}") from None
    path: IndexPath = ()
    if isinstance(compiled, ProtobufSchema):
        path = _path_of(compiled, settings.files_message_type)
    return NamedSchema(schema, (schema.schema_id, path), identity_bytes(schema.schema_id, path, indexed=compiled.indexed))


def _from_subject(name: str, registry: SchemaRegistry) -> RegistrySchema:
    subject = name.removeprefix(SUBJECT)
    newest = registry.newest(subject)
    schema = registry.fetch(newest[1]) if newest is not None else None
    if schema is None:
        raise ConfigurationError(f"{SETTING}: the registry {registry.url} has no subject {subject!r}")
    return schema


def _from_file(settings: Settings) -> RegistrySchema:
    path = Path(str(settings.files_schema)).expanduser()
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise ConfigurationError(f"{SETTING}: {path} ends in none of {', '.join(_KINDS)}, and is no `{SUBJECT}NAME`")
    try:
        text = path.read_text("utf-8")
        references = _imports(path, text) if kind == "PROTOBUF" else ()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{SETTING}: {path} cannot be read: {error}") from None
    return RegistrySchema(schema_guid(kind, text, references), kind, text, references)


def _imports(path: Path, text: str) -> tuple[tuple[str, str], ...]:
    """(Name, text) of imported .proto files in the same folder, dependencies first; other imports are protoc's own."""
    texts: dict[str, str] = {}
    seen: set[str] = set()  # circular imports are refused by the compiler

    def visit(body: str) -> None:
        for name in imports(body):
            beside = path.parent / name
            if name not in seen and beside.is_file() and not {"..", "/"} & set(Path(name).parts):
                seen.add(name)
                inner = beside.read_text("utf-8")
                visit(inner)
                texts[name] = inner

    visit(text)
    return tuple(texts.items())


def _path_of(schema: ProtobufSchema, name: str | None) -> IndexPath:
    """Index path of a message type by its full name."""
    if name is None:
        return (0,)
    names = schema.type_paths()
    if name not in names:
        raise ConfigurationError(
            f"GAME_EVENTS_FILES_MESSAGE_TYPE: the schema has no message {name!r}; it has {', '.join(sorted(names))}"
        )
    return names[name]


class FileSchemas:
    """Schemas by id while files are the source (before the registry client): those found in files, then the registry."""

    def __init__(self, registry: SchemaLookup, *, framed: bool) -> None:
        """Wraps the registry; `framed`: records name schemas of the registry."""
        self.url = registry.url
        self._registry = registry
        self._framed = framed
        self._offered: dict[SchemaId, RegistrySchema] = {}

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Add schemas found in files."""
        for schema in schemas:
            self._offered.setdefault(schema.schema_id, schema)

    def fetch(self, schema_id: SchemaId) -> RegistrySchema | None:
        """The schema of an id or GUID; None: unknown; raises as `SchemaRegistry.fetch`."""
        offered = self._offered.get(schema_id)
        known = None if offered is not None and offered.format == UNKNOWN else offered
        if self._framed and (isinstance(schema_id, int) or offered is None):
            # The registry defines its ids; an archive may have schemas that it has lost.
            return self._registry.fetch(schema_id) or known
        if offered is None and isinstance(schema_id, int):
            return self._registry.fetch(schema_id)
        return known

    def version_numbers(self, subject: str) -> list[int]:  # noqa: ARG002
        """Files have no subject."""
        return []

    def versions(self, subject: str) -> list[SubjectVersion]:  # noqa: ARG002
        """Files have no subject."""
        return []
