"""Comments of schemas: of `.proto` files, Avro's `doc`, JSON Schema's `description`.

The compiler's child process reads them from the text (`collect`); the driver asks it, and keeps only them.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from game_events.decoding.avro_schema import AvroType, read_avro
from game_events.decoding.columns import UNSEEN
from game_events.decoding.decoder import ask_about
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json_schema import INNER, SchemaNode, SchemaText, properties
from game_events.errors import DataError

log = logging.getLogger(__name__)
#: Schemas visited for one property of a JSON Schema, and types of one schema that may have comments.
MAX_PLACES = 200
MAX_TYPES = 10_000
#: Numbers of `message_type`, `nested_type` and `field` in the messages that describe a file, and a message.
_MESSAGE = 4
_NESTED = 3
_FIELD = 2
Place = tuple[int, ...]
#: Characters of a comment: each commit that changes a column repeats all comments.
MAX_CHARS = 500
_UNSEEN = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{UNSEEN}\ud800-\udfff]")
#: A field's comment, and the keys of the types of its value, without lists and maps around them.
Member = tuple[str, Sequence[str]]


@dataclass
class Comments:
    """The comments of one schema.

    Attributes:
        types: key of a type -> its comment; of a message type the key is its full name.
        members: key of a type -> its fields by name.
    """

    types: dict[str, str] = field(default_factory=dict)
    members: dict[str, dict[str, Member]] = field(default_factory=dict)

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """The comment of a message type, by its full name, or of the field at a path of names; "": none."""
        text = self.types.get(message, "")
        kinds: Sequence[str] = [message]
        for name in names:
            members = [self.members[kind][name] for kind in kinds if name in self.members.get(kind, {})]
            text = next((comment for comment, _ in members if comment), "")
            kinds = [kind for _, inside in members for kind in inside]
        return text

    @property
    def size(self) -> int:
        """Its memory, about, in bytes."""
        return sum(len(name) + len(member[0]) for fields in self.members.values() for name, member in fields.items())


NO_COMMENTS = Comments()


def read_comments(schema: RegistrySchema) -> Comments:
    """The comments of a schema, none if they cannot be read; TransientError if the compiler cannot be used now."""
    try:
        answer = ask_about(schema, "comments")
    except DataError as error:
        log.info("comments_not_read=true schema_id=%s cause=%s", schema.schema_id, type(error).__name__)
        return NO_COMMENTS
    return Comments(answer["types"], answer["members"])


def collect(schema: RegistrySchema, files: Sequence[FileDescriptorProto]) -> Mapping[str, Any]:
    """`Comments` of a schema as a mapping; `files`: of protobuf, with their comments."""
    read = Comments()
    match schema.format:
        case "PROTOBUF":
            for file in files:
                _add_messages(read, file.message_type, file.package, (_MESSAGE,), _texts(file))
        case "AVRO":
            read = _of_avro(read_avro(schema)[0])
        case "JSON":
            read = _of_json(SchemaText(schema))
    return asdict(read)


def _texts(file: FileDescriptorProto) -> dict[Place, str]:
    """Place in the descriptor -> the comment before it or after it on its line; a base64 descriptor has none.

    Source: google/protobuf/descriptor.proto, "SourceCodeInfo.Location".
    """
    return {tuple(at.path): clean(f"{at.leading_comments} {at.trailing_comments}") for at in file.source_code_info.location}


def _add_messages(
    comments: Comments, messages: Sequence[DescriptorProto], package: str, place: Place, texts: Mapping[Place, str]
) -> None:
    for index, message in enumerate(messages):
        name = f"{package}.{message.name}" if package else message.name
        here = (*place, index)
        comments.types[name] = texts.get(here, "")
        # The value of a map is a field of a generated message.
        values = {
            f".{name}.{inner.name}": next((f.type_name for f in inner.field if f.number == 2), "")
            for inner in message.nested_type
            if inner.options.map_entry
        }
        members = comments.members[name] = {}
        for number, item in enumerate(message.field):
            kind = values.get(item.type_name, item.type_name).removeprefix(".")
            members[item.name] = (texts.get((*here, _FIELD, number), ""), [kind] if kind else [])
        _add_messages(comments, message.nested_type, name, (*here, _NESTED), texts)


def _of_avro(root: AvroType) -> Comments:
    """`doc` of fields and named types; of a union at the top each branch is a column."""
    comments = Comments(types={root.name: clean(root.doc)})
    if root.kind == "union":
        comments.members[root.name] = {name: _member(b.doc, b) for b in root.items for name in (b.name, b.short_name)}
    waiting = [root]
    while waiting:
        for record in waiting.pop().records():
            if record.name not in comments.members:
                comments.members[record.name] = {f.name: _member(f.doc, f.type) for f in record.fields}
                waiting += [f.type for f in record.fields]
    return comments


def _member(doc: str, kind: AvroType) -> Member:
    return clean(doc), [record.name for record in kind.records()]


def _of_json(schema: SchemaText) -> Comments:
    """`description` of properties; beside a `$ref` the local one takes precedence.

    Source: JSON Schema, "A Vocabulary for Basic Meta-Data Annotations".
    """
    top = _parts(schema, [schema.root])
    comments = Comments(types={schema.message: _description(top)})
    keys = {tuple(id(place.node) for place in top): schema.message}
    waiting = [(schema.message, top)]
    while waiting and len(comments.members) < MAX_TYPES:
        kind, places = waiting.pop()
        members = comments.members[kind] = {}
        for name, inner in properties(places).items():
            parts = _parts(schema, inner)
            identity = tuple(id(place.node) for place in parts)
            if identity not in keys:
                keys[identity] = f"#{len(keys)}"
                waiting.append((keys[identity], parts))
            members[name] = (_description(parts), [keys[identity]])
    return comments


def _description(places: Sequence[SchemaNode]) -> str:
    return clean(next((p.node["description"] for p in places if isinstance(p.node.get("description"), str)), ""))


def _parts(schema: SchemaText, places: Sequence[SchemaNode]) -> list[SchemaNode]:
    """The schemas of a value: itself, references, parts, items of a list or map, up to a broken reference."""
    parts: list[SchemaNode] = []
    with suppress(DataError):  # reported by decoding
        for place in islice(schema.parts(places, INNER), MAX_PLACES):
            if isinstance(place.node, dict):
                parts.append(place)
    return parts


def clean(text: object) -> str:
    """A comment as stored: one line of visible characters, at most `MAX_CHARS`; "" for other values than text."""
    if not isinstance(text, str):
        return ""
    # Cut first: a comment may be megabytes.
    line = " ".join(_UNSEEN.sub(" ", text[: 20 * MAX_CHARS]).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3].rstrip() + "..."
