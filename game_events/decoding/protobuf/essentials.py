"""What decoding needs of a protobuf schema: message types, with fields, enums and imports.

Services, JSON names and most options change nothing that is decoded. They are cut out of `.proto` texts that do not compile
with them, so that a mistake there (a rule of a validator, a file of options that was never registered) loses no record, and
out of all descriptors, so that no process keeps them.

Source: Protocol Buffers language specification; google/protobuf/descriptor.proto.
"""

import re
from collections.abc import Container, Iterable, Sequence
from itertools import takewhile

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from game_events.errors import DataError

#: As in `source_text`: comments are skipped, a string is one word, an unclosed one extends to the end. Other
#: characters are words of their own.
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<word>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[\w.]+|\S)""", re.DOTALL | re.ASCII
)
_OPEN, _CLOSED = frozenset("{[("), frozenset("}])")
#: Options of Google's that change what is decoded, or whether a text is valid at all; `features`: those without an import.
_NEEDED = re.compile(r"allow_alias|message_set_wire_format|packed|default|features(?:\.[a-z_]+)*")
#: The messages that custom options extend.
_EXTENDED = re.compile(
    r"\.?google\.protobuf\.(?:File|Message|Field|Oneof|ExtensionRange|Enum|EnumValue|Service|Method|Stream)Options"
)
#: Protoc refuses two fields with one JSON name unless the message has this option.
_ANY_JSON_NAMES = " option deprecated_legacy_json_field_conflicts = true; "
#: The same options in descriptors.
_NEEDED_FIELDS = ("map_entry", "message_set_wire_format", "packed", "allow_alias", "features")
#: A type of a file that registries do not hold: its package, its name.
_KNOWN_TYPE = re.compile(r"(?<![\w.])\.?((?:google|confluent)(?:\.[a-z]\w*)+)\.([A-Z]\w*)", re.ASCII)


def essential_text(text: str, without: Container[str], added: Iterable[str] = ()) -> str:
    """A `.proto` text without what decoding does not need, and without imports of the files `without`; imports are `added`.

    Message types keep their order, and so their indexes. Linear in the length of the text.

    Raises:
        DataError: brackets do not match.
    """
    imports = "".join(f'\nimport "{name}";' for name in added)
    return _Cutter(text, without).cut() + imports


class _Cutter:
    """One pass over the words of a text; a statement begins behind `{`, `}` or `;`."""

    def __init__(self, text: str, without: Container[str]) -> None:
        self._text, self._without = text, without
        found = [match for match in _TOKENS.finditer(text) if match["word"]]
        self._words = [match["word"] for match in found]
        self._spans = [match.span("word") for match in found]
        self._parts: list[str] = []
        self._copied = 0

    def cut(self) -> str:
        """The text that is left."""
        at = depth = 0
        begins = True
        while at < len(self._words):
            word = self._words[at]
            end = self._statement(at, depth) if begins else None
            if end is not None:
                at = end
                continue
            if word == "[":
                at = self._field_options(at)
            else:
                depth += (word == "{") - (word == "}")
                if word == "{" and self._is_message(at):
                    self._replace(at + 1, at + 1, _ANY_JSON_NAMES)
                at += 1
            begins = word in {"{", "}", ";"}
        return "".join([*self._parts, self._text[self._copied :]])

    def _statement(self, at: int, depth: int) -> int | None:
        """The end of a statement that is looked at as a whole, and cut out unless it is needed; None: any other."""
        words = self._words
        following = words[at + 1] if at + 1 < len(words) else ""
        match words[at]:
            case "option":
                end = self._end(at, ";")
                needed = self._is_needed(at + 1, end)
            case "import" if not depth:
                end = self._end(at, ";")
                needed = not any(word[1:-1] in self._without for word in words[at:end] if word[0] in "\"'")
            case "service" if not depth:
                end, needed = self._end(at, "}"), False
            case "extend" if _EXTENDED.fullmatch(following):
                end = self._end(at, "}")
                # A group declares a message type, which has an index.
                needed = "group" in words[at:end]
            case _:
                return None
        if not needed:
            self._replace(at, end, "")
        return end

    def _is_message(self, at: int) -> bool:
        """Whether a brace opens a message type."""
        begun = self._words[at - 3] if at > 2 else ";"
        return at > 1 and self._words[at - 2] == "message" and begun in {"{", "}", ";", "export", "local"}

    def _field_options(self, at: int) -> int:
        """Cut the options between brackets, except the needed ones; returns the end."""
        end, depth, begin = self._end(at, "]"), 0, at + 1
        kept = []
        for here in range(at + 1, end):
            word = self._words[here]
            if (word == "," and not depth) or here == end - 1:
                if self._is_needed(begin, here):
                    kept.append(self._text[self._spans[begin][0] : self._spans[here][0]])
                begin = here + 1
            depth += (word in _OPEN) - (word in _CLOSED)
        self._replace(at, end, f"[{', '.join(kept)}]" if kept else "")
        return end

    def _is_needed(self, begin: int, end: int) -> bool:
        """Whether decoding needs an option; its name may be several words (`features . enum_type`)."""
        name = "".join(takewhile(lambda word: word != "=", self._words[begin:end]))
        return _NEEDED.fullmatch(name) is not None

    def _end(self, at: int, last: str) -> int:
        """The position behind the next word `last` outside of brackets, or that closes them."""
        depth = 0
        for here in range(at, len(self._words)):
            word = self._words[here]
            depth += (word in _OPEN) - (word in _CLOSED)
            if depth < 0:
                break
            if word == last and not depth:
                return here + 1
        raise DataError(f"brackets do not match behind {self._words[at]!r}")

    def _replace(self, begin: int, end: int, new: str) -> None:
        """Replace the words from `begin` to before `end`."""
        start = self._spans[begin][0] if begin < len(self._spans) else len(self._text)
        stop = self._spans[end - 1][1] if end > begin else start
        self._parts += [self._text[self._copied : start], new]
        self._copied = stop


def known_types(text: str) -> set[tuple[str, str]]:
    """(Package, name) of types of google and confluent whose full names occur in a text."""
    return {(match[1], match[2]) for match in _KNOWN_TYPE.finditer(text)}


def refuse_missing_extensions(pool: DescriptorPool, main: str) -> None:
    """Raise DataError if files that there are not may add fields to messages of a file: their values would be lost.

    Not to messages that it defines: such a file would have to import the one by which it is imported.
    """
    waiting = [*pool.FindFileByName(main).message_types_by_name.values()]
    seen = set[str]()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        fields = [*message.fields]
        if message.is_extendable:
            if message.file.name != main:
                raise DataError(f"a file that there is not may add fields to {message.full_name}")
            fields += pool.FindAllExtensions(message)
        waiting += [*message.nested_types, *(f.message_type for f in fields if f.message_type is not None)]


def reduce_file(file: FileDescriptorProto) -> None:
    """Remove from a file what decoding does not need; JSON names become the fields' own, which are distinct."""
    file.ClearField("source_code_info")
    file.ClearField("service")
    _reduce_options([file])
    _reduce_enums(file.enum_type)
    _reduce_fields(file.extension)
    messages: list[DescriptorProto] = [*file.message_type]
    while messages:
        message = messages.pop()
        _reduce_options([message, *message.oneof_decl, *message.extension_range])
        _reduce_fields([*message.field, *message.extension])
        _reduce_enums(message.enum_type)
        messages += message.nested_type


def without_imports(file: FileDescriptorProto, missing: Container[str]) -> None:
    """Remove imports of files that there are not."""
    kept = [name for name in file.dependency if name not in missing]
    public = {file.dependency[index] for index in file.public_dependency}
    for field in ("dependency", "public_dependency", "weak_dependency", "option_dependency"):
        file.ClearField(field)
    file.dependency.extend(kept)
    file.public_dependency.extend(index for index, name in enumerate(kept) if name in public)


def _reduce_fields(fields: Iterable[FieldDescriptorProto]) -> None:
    for item in fields:
        item.json_name = item.name
        _reduce_options([item])


def _reduce_enums(enums: Iterable[EnumDescriptorProto]) -> None:
    for enum in enums:
        _reduce_options([enum, *enum.value])


def _reduce_options(described: Sequence[object]) -> None:
    for item in described:
        if not item.HasField("options"):  # type: ignore[attr-defined]
            continue
        options = item.options  # type: ignore[attr-defined]
        kept = type(options)()
        for name in _NEEDED_FIELDS:
            if name in options.DESCRIPTOR.fields_by_name and options.HasField(name):
                field = options.DESCRIPTOR.fields_by_name[name]
                if field.message_type is not None:
                    getattr(kept, name).CopyFrom(getattr(options, name))
                else:
                    setattr(kept, name, getattr(options, name))
        if kept.ByteSize():
            options.CopyFrom(kept)
        else:
            item.ClearField("options")  # type: ignore[attr-defined]
