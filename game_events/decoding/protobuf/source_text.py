"""What a `.proto` text says before it is compiled: its package and messages, what it imports, which messages are map entries.

Source: Protocol Buffers language specification, "Lexical Elements", "Import Statement".
"""

from __future__ import annotations

import re
from itertools import pairwise

#: Comments are passed over, and texts are one word: what looks like a message inside them is none. One that is not closed goes
#: on to the end, so that each character is looked at once.
_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<word>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[A-Za-z_][\w.]*|[{}();=])""",
    re.DOTALL | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAP_ENTRY = ("option", "map_entry", "=", "true", ";")
#: Messages inside one another; protoc takes no more than 32.
MAX_NESTING = 100

#: Names of messages from the outermost inwards.
Names = tuple[str, ...]


def _words(text: str) -> list[str]:
    return [m["word"] for m in _WORDS.finditer(text) if m["word"]]


def imports(text: str) -> list[str]:
    """What a text imports, by name, in order."""
    words, found = _words(text), []
    for at, word in enumerate(words):
        if word == "import":
            name = next((w for w in words[at + 1 : at + 3] if w[0] in "\"'"), "")
            if name:
                found.append(name[1:-1])
    return found


def top_messages(text: str) -> tuple[str, list[str]]:
    """Package and top-level messages, in order; no messages, if what was read is not certain."""
    package, names, depth = "", [], 0
    for word, following in pairwise([*_words(text), ""]):
        if word in {"{", "}"}:
            depth += 1 if word == "{" else -1
        elif not depth and word == "package":
            package = following
        elif not depth and word == "message":
            names.append(following)
    # Braces that do not match, or a name that is none.
    good = not depth and all(_NAME.fullmatch(name) for name in names)
    return package, names if good else []


def without_map_entries(text: str) -> tuple[str, list[Names]]:
    """The text without its options `map_entry`, and the messages that had it.

    Confluent's registry writes the maps of a descriptor it was given as the messages that they are made of, with this option,
    which protoc takes from nobody. What is taken out becomes spaces: all else stays where it was.
    """
    if "map_entry" not in text:
        return text, []
    found_at = [m for m in _WORDS.finditer(text) if m["word"]]
    words = [m["word"] for m in found_at]
    found: list[Names] = []
    spans: list[tuple[int, int]] = []
    around: list[str | None] = []
    for at, word in enumerate(words):
        if word == "{":
            # None: it opens something else than a message.
            around.append(words[at - 1] if at > 1 and words[at - 2] == "message" else None)
        elif word == "}" and around:
            around.pop()
        elif word == "option" and tuple(words[at : at + 5]) == _MAP_ENTRY:
            names = tuple(name for name in around[: MAX_NESTING + 1] if name is not None)
            if names and len(names) == len(around):
                found.append(names)
                spans.append((found_at[at].start(), found_at[at + 4].end()))
    parts, last = [], 0
    for begin, end in spans:
        parts += [text[last:begin], re.sub(r"[^\n]", " ", text[begin:end])]
        last = end
    return "".join([*parts, text[last:]]), found
