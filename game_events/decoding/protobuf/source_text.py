"""Scanner of `.proto` texts before compilation: package, messages, imports, map entries.

Source: Protocol Buffers language specification, "Lexical Elements", "Import Statement".
"""

import re
from itertools import pairwise

#: Comments are skipped, and strings are one token. An unclosed one extends to the end, so that each character is read once.
_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<word>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[A-Za-z_][\w.]*|[{}();=])""",
    re.DOTALL | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAP_ENTRY = ("option", "map_entry", "=", "true", ";")
#: Nested messages at most; protoc's limit is 32.
MAX_NESTING = 100

#: Names of messages, outermost first.
Names = tuple[str, ...]


def _words(text: str) -> list[str]:
    return [m["word"] for m in _WORDS.finditer(text) if m["word"]]


def imports(text: str) -> list[str]:
    """Names of imports, in order."""
    words, found = _words(text), []
    for at, word in enumerate(words):
        if word == "import":
            name = next((w for w in words[at + 1 : at + 3] if w[0] in "\"'"), "")
            if name:
                found.append(name[1:-1])
    return found


def top_messages(text: str) -> tuple[str, list[str]]:
    """Package and top-level messages, in order; no messages if the text is invalid."""
    package, names, depth = "", [], 0
    for word, following in pairwise([*_words(text), ""]):
        if word in {"{", "}"}:
            depth += 1 if word == "{" else -1
        elif not depth and word == "package":
            package = following
        elif not depth and word == "message":
            names.append(following)
    # Braces must match, and names be valid.
    good = not depth and all(_NAME.fullmatch(name) for name in names)
    return package, names if good else []


def without_map_entries(text: str) -> tuple[str, list[Names]]:
    """The text with options `map_entry` replaced by spaces, and the messages that had it.

    Confluent's registry converts maps of a registered descriptor to messages with this option, which protoc refuses.
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
            # None: a block other than a message.
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
