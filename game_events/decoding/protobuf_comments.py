"""Reads comments of `.proto` files, before a field or after it on its line; a base64 descriptor has none.

Source: google/protobuf/descriptor.proto, "SourceCodeInfo.Location".
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor_pb2 import DescriptorProto

from game_events.decoding.compiler import described_files
from game_events.decoding.core.registry_schema import RegistrySchema

#: Numbers of `message_type`, `nested_type` and `field` in the messages that describe a file, and a message.
_MESSAGE, _NESTED, _FIELD = 4, 3, 2
Path = tuple[int, ...]


class ProtobufComments:
    """The comments of a schema's files (see `comments.Comments`)."""

    def __init__(self, schema: RegistrySchema) -> None:
        """Compiles the texts with source info; raises as `compile_schema`."""
        #: Message -> its comment, and field -> (comment, message type of its value).
        self._messages: dict[str, str] = {}
        self._fields: dict[str, dict[str, tuple[str, str]]] = {}
        for file in described_files(schema):
            found = {tuple(location.path): location for location in file.source_code_info.location}
            texts = {path: _text(at.leading_comments, at.trailing_comments) for path, at in found.items()}
            self._add(file.message_type, file.package, (_MESSAGE,), texts)

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """See `comments.Comments.of`."""
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
