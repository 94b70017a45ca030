"""Comments of schemas, in the driver only: of `.proto` files, Avro's `doc`, JSON Schema's `description`."""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import cast

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

from game_events.decoding.avro.schema import compile_avro
from game_events.decoding.compiler import compile_schema
from game_events.decoding.core.column_map import UNSEEN
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.json.schema import INNER, JsonSchema, SchemaNode, typed
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError

log = logging.getLogger(__name__)

#: Schemas visited for one property of a JSON Schema.
MAX_PLACES = 200
#: Numbers of `message_type`, `nested_type` and `field` in the messages that describe a file, and a message.
_MESSAGE, _NESTED, _FIELD = 4, 3, 2
Path = tuple[int, ...]
#: Characters of a comment: each commit that changes a column repeats all comments.
MAX_CHARS = 500
_UNSEEN = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{UNSEEN}\ud800-\udfff]")


class Comments:
    """The comments of one schema; none, unless a subclass reads them."""

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:  # noqa: ARG002
        """The original comment of a message type, by its full name, or of the field at a path of names; "": none."""
        return ""


NO_COMMENTS = Comments()


class _ProtobufComments(Comments):
    """Comments of `.proto` files, before a field or after it on its line; a base64 descriptor has none.

    Source: google/protobuf/descriptor.proto, "SourceCodeInfo.Location".
    """

    def __init__(self, schema: RegistrySchema) -> None:
        """Compiles the texts with source info; raises as `compile_schema`."""
        #: Message -> its comment, and field -> (comment, message type of its value).
        self._messages: dict[str, str] = {}
        self._fields: dict[str, dict[str, tuple[str, str]]] = {}
        compiled = cast(ProtobufSchema, compile_schema(schema, "--include_source_info"))
        for file in FileDescriptorSet.FromString(compiled.files).file:
            found = {tuple(location.path): location for location in file.source_code_info.location}
            texts = {path: _text(at.leading_comments, at.trailing_comments) for path, at in found.items()}
            self._add(file.message_type, file.package, (_MESSAGE,), texts)

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        text = self._messages.get(message, "")
        for name in names:
            text, message = self._fields.get(message, {}).get(name, ("", ""))
        return text

    def _add(self, messages: Sequence[DescriptorProto], package: str, path: Path, texts: dict[Path, str]) -> None:
        for index, message in enumerate(messages):
            name, here = f"{package}.{message.name}" if package else message.name, (*path, index)
            self._messages[name] = texts.get(here, "")
            # The value of a map is a field of a generated message.
            values = {
                f".{name}.{inner.name}": next((f.type_name for f in inner.field if f.number == 2), "")
                for inner in message.nested_type
                if inner.options.map_entry
            }
            self._fields[name] = {
                field.name: (
                    texts.get((*here, _FIELD, at), ""),
                    values.get(field.type_name, field.type_name).removeprefix("."),
                )
                for at, field in enumerate(message.field)
            }
            self._add(message.nested_type, name, (*here, _NESTED), texts)


def _text(leading: str, trailing: str) -> str:
    return " ".join(part.strip() for part in (leading, trailing) if part.strip())


class _AvroComments(Comments):
    """`doc` of Avro's fields and named types."""

    def __init__(self, schema: RegistrySchema) -> None:
        """Raises DataError for an invalid schema."""
        self._root = compile_avro(schema).root

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        if message != self._root.name:
            return ""
        types, text = [self._root], self._root.doc
        if names and self._root.kind == "union":  # each branch is a column
            types = [b for b in self._root.items if b.short_name == names[0].rpartition(".")[2]]
            text, names = next((b.doc for b in types), ""), names[1:]
        for name in names:
            fields = [r.by_name[name] for t in types for r in t.records() if name in r.by_name]
            types = [f.type for f in fields]
            text = next((f.doc for f in fields if f.doc), "")
        return text


class _JsonComments(Comments):
    """`description` of JSON Schema's properties; beside a `$ref` the local one takes precedence.

    Source: JSON Schema, "A Vocabulary for Basic Meta-Data Annotations".
    """

    def __init__(self, schema: RegistrySchema) -> None:
        """Raises DataError for an invalid schema."""
        self._schema = JsonSchema(schema.schema_id, schema.text, schema.references)
        _ = self._schema.root

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        if message != self._schema.message:
            return ""
        places = self._parts([self._schema.root])
        for name in names:
            properties = [(typed(p.node, "properties", dict), p) for p in places]
            places = self._parts([p.inner(found[name]) for found, p in properties if name in found])
        return next((str(p.node["description"]) for p in places if isinstance(p.node.get("description"), str)), "")

    def _parts(self, places: list[SchemaNode]) -> list[SchemaNode]:
        """The schemas of a value: itself, references, parts, items of a list or map."""
        found: list[SchemaNode] = []
        with suppress(DataError):  # reported by decoding
            for place in islice(self._schema.parts(places, INNER), MAX_PLACES):
                found += [place] if isinstance(place.node, dict) else []
        return found


def read_comments(schema: RegistrySchema) -> Comments:
    """The comments of a schema, none if they cannot be read; TransientError if the compiler cannot be used now."""
    readers: dict[str, Callable[[RegistrySchema], Comments]] = {
        "PROTOBUF": _ProtobufComments,
        "AVRO": _AvroComments,
        "JSON": _JsonComments,
    }
    try:
        return readers[schema.format](schema)
    except (DataError, KeyError, ValueError, TypeError, RecursionError) as error:
        log.info("comments_not_read=true schema_id=%s cause=%s", schema.schema_id, type(error).__name__)
        return NO_COMMENTS


def clean(text: object) -> str:
    """A comment as stored: one line of visible characters, at most `MAX_CHARS`; "" for other values than text."""
    if not isinstance(text, str):
        return ""
    # Cut first: a comment may be megabytes.
    line = " ".join(_UNSEEN.sub(" ", text[: 20 * MAX_CHARS]).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3].rstrip() + "..."
