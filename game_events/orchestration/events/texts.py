"""Texts of others on Dagster's pages: names, values and comments of schemas, errors, compilers' words.

Dagster shows descriptions and `MetadataValue.md` as Markdown, and cells of tables, reasons and other metadata as they are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import dagster as dg

#: Markdown's punctuation; an underscore inside of a word is none.
_PUNCTUATION = re.compile(r"[\\`*\[\]<>|~&]|(?<![^\W_])_|_(?![^\W_])")
#: What only means something where a line begins: headings, lists, rules, code; numbers of a list.
_BEGINNING = re.compile(r"^(\d*)([#+\-=.)])")
#: Any punctuation can be escaped.
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def one_line(text: object) -> str:
    """A text as one line of characters that can be seen."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def as_text(text: object) -> str:
    """One line of Markdown that shows a text as it is.

    It is a paragraph of its own or a part of one: no link, picture, heading, table, emphasis, code or HTML. Addresses that
    begin with http:// or www. are links to themselves all the same, as in any text.
    """
    escaped = _PUNCTUATION.sub(lambda found: "\\" + found[0], one_line(text))
    return _BEGINNING.sub(r"\1\\\2", escaped)


def plain(markdown: str) -> str:
    """The text that `as_text` has made Markdown of."""
    return _ESCAPED.sub(r"\1", markdown)


def table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> dg.TableMetadataValue:
    """A table of texts and whole numbers."""
    records = [
        dg.TableRecord({name: value if isinstance(value, int) else one_line(value) for name, value in row.items()})
        for row in rows
    ]
    whole = {name for record in records for name, value in record.data.items() if isinstance(value, int)}
    kinds = [dg.TableColumn(name, type="int" if name in whole else "string") for name in columns]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(kinds))
