"""Protobuf descriptors of a schema id, message types by the indexes of records, and a scanner of `.proto` texts.

The scanner reads package, messages, imports and map entries before compilation. Source: Protocol Buffers language
specification, "Lexical Elements", "Import Statement".
"""

import base64
import binascii
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from game_events.decoding.frame import IndexPath
from game_events.decoding.projection import CompiledSchema

FileSet = descriptor_pb2.FileDescriptorSet
Types = Sequence[descriptor_pb2.DescriptorProto]


@dataclass(frozen=True)
class ProtobufSchema(CompiledSchema):
    """Descriptors of one schema id, with a descriptor pool of its own.

    A map field has a nested message type, its entry, which serializers count differently: those that use the descriptor count
    it among the nested types, those that use the text, or a library that hides it, do not. An index of an entry, or past the
    last type, proves the other way of counting, as no record is a map entry.

    Attributes:
        main: name of the file with the message types.
        files: a serialized ``FileDescriptorSet``, dependencies before dependents.
        counts_entries: whether indexes count map entries unless they prove otherwise: where the registry has a descriptor, or
            text with explicit entries.
        decimals: whether messages that are decimals become decimals (setting `decimal_messages`).
    """

    main: str
    files: bytes
    counts_entries: bool = True
    decimals: bool = False
    indexed: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """See `CompiledSchema.size`."""
        return len(self.files)

    @cached_property
    def pool(self) -> DescriptorPool:
        """A pool with only this schema's files: two ids may define a name differently."""
        pool = DescriptorPool()
        for file in FileSet.FromString(self.files).file:
            pool.Add(file)
        return pool

    @cached_property
    def names(self) -> dict[IndexPath, str]:
        """See `CompiledSchema.names`; also of index paths that only exist if map entries are counted the other way."""
        usual, other = self._names
        return other | usual

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:
        """See `CompiledSchema.paths`."""
        return [path for name, path in self.type_paths().items() if len(path) == 1 or name in nested]

    def message(self, path: IndexPath) -> Descriptor | None:
        """The message type at an index path of the frame, or None if there is none."""
        return self.pool.FindMessageTypeByName(self.names[path]) if self.has(path) else None

    def other_meaning(self, path: IndexPath) -> str | None:
        """Full name of the other message type at an index path if map entries are counted the other way."""
        usual, other = self._names
        return other.get(path) if path in usual and other.get(path) != usual[path] else None

    def type_paths(self) -> dict[str, IndexPath]:
        """Full names of all message types of the file, nested ones included, with their index paths."""
        return {name: path for path, name in self._names[0].items()}

    def enums(self) -> dict[str, dict[int | str, str]]:
        """Full names of the enums of all files, with names of values by number (the first of aliases)."""
        enums: dict[str, dict[int | str, str]] = {}
        for file in FileSet.FromString(self.files).file:
            for name, enum in _enums(file, file.package):
                values = enums.setdefault(name, {})
                for value in enum.value:
                    values.setdefault(value.number, value.name)
        return enums

    @property
    def paths_without_entries(self) -> dict[IndexPath, str]:
        """Full names of message types by index path, as counted without map entries."""
        return self._names[int(self.counts_entries)]

    @cached_property
    def _names(self) -> tuple[dict[IndexPath, str], dict[IndexPath, str]]:
        """Full names of message types by index path: as `counts_entries`, and with map entries counted the other way."""
        top = (self.main_file.message_type, (), self.main_file.package)
        return dict(_types(*top, self.counts_entries)), dict(_types(*top, not self.counts_entries))

    @cached_property
    def main_file(self) -> descriptor_pb2.FileDescriptorProto:
        """The file with the message types."""
        return next(f for f in FileSet.FromString(self.files).file if f.name == self.main)


def _types(level: Types, above: IndexPath, around: str, entries: bool) -> Iterator[tuple[IndexPath, str]]:
    """Index paths and full names of message types without map entries, which indexes count or not."""
    for index, item in enumerate(level):
        if not item.options.map_entry:
            path = (*above, index)
            name = f"{around}.{item.name}" if around else item.name
            yield path, name
            yield from _types([m for m in item.nested_type if entries or not m.options.map_entry], path, name, entries)


def _enums(
    around: descriptor_pb2.FileDescriptorProto | descriptor_pb2.DescriptorProto, name: str
) -> Iterator[tuple[str, descriptor_pb2.EnumDescriptorProto]]:
    """Enums of a file, or of a message type and of those nested in it, by full name."""
    prefix = f"{name}." if name else ""
    yield from ((f"{prefix}{enum.name}", enum) for enum in around.enum_type)
    inner = around.message_type if isinstance(around, descriptor_pb2.FileDescriptorProto) else around.nested_type
    for message in inner:
        yield from _enums(message, f"{prefix}{message.name}")


def from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The file of a base64 text; None: it is `.proto` text."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


#: Comments are skipped, and strings are one word. An unclosed one extends to the end, so that each character is read once.
#: Other characters are words of their own.
_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<word>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[\w.]+|\S)""", re.DOTALL | re.ASCII
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: Brace -> by how much it changes the depth.
_DEPTHS = {"{": 1, "}": -1}
_MAP_ENTRY = ("option", "map_entry", "=", "true", ";")
#: Nested messages at most; protoc's limit is 32.
MAX_NESTING = 100
#: Names of messages, outermost first.
Names = tuple[str, ...]


def words_of(text: str) -> list[re.Match[str]]:
    """The words of a `.proto` text, in the group `word`, with their places."""
    return [match for match in _WORDS.finditer(text) if match["word"]]


def _words(text: str) -> list[str]:
    return [match["word"] for match in words_of(text)]


def imports(text: str) -> list[str]:
    """Names of imports, in order."""
    words = _words(text)
    names = []
    for index, word in enumerate(words):
        if word == "import":
            name = next((w for w in words[index + 1 : index + 3] if w[0] in "\"'"), "")
            if name:
                names.append(name[1:-1])
    return names


def top_messages(text: str) -> tuple[str, list[str]]:
    """Package and top-level messages, in order; no messages if the text is invalid."""
    package = ""
    names: list[str] = []
    depth = 0
    for word, following in pairwise([*_words(text), ""]):
        if word in _DEPTHS:
            depth += _DEPTHS[word]
        elif depth == 0 and word == "package":
            package = following
        elif depth == 0 and word == "message":
            names.append(following)
    # Braces must match, and names be valid.
    is_valid = depth == 0 and all(map(_NAME.fullmatch, names))
    return package, names if is_valid else []


def without_map_entries(text: str) -> tuple[str, list[Names]]:
    """The text with options `map_entry` replaced by spaces, and the messages that had it.

    Confluent's registry converts maps of a registered descriptor to messages with this option, which protoc refuses.
    """
    if "map_entry" not in text:
        return text, []
    entries: list[Names] = []
    parts: list[str] = []
    last = 0
    for names, begin, end in _map_entries(text):
        entries.append(names)
        parts += [text[last:begin], re.sub(r"[^\n]", " ", text[begin:end])]
        last = end
    return "".join([*parts, text[last:]]), entries


def _map_entries(text: str) -> Iterator[tuple[Names, int, int]]:
    """Messages with the option `map_entry`, and where it begins and ends."""
    matches = words_of(text)
    words = [match["word"] for match in matches]
    #: Names of the messages around a word; "": of a block that is none.
    around: list[str] = []
    for index, word in enumerate(words):
        if word == "{":
            around.append(words[index - 1] if words[max(0, index - 2) : index - 1] == ["message"] else "")
        elif word == "}":
            del around[-1:]
        elif word == "option" and tuple(words[index : index + 5]) == _MAP_ENTRY:
            names = tuple(around)
            if 0 < len(names) <= MAX_NESTING + 1 and "" not in names:
                yield names, matches[index].start(), matches[index + 4].end()
