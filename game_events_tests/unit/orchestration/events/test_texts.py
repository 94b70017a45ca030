"""What others have written is text on Dagster's pages, never Markdown."""

from __future__ import annotations

import ast
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import game_events.orchestration
from game_events.orchestration.events import as_text, one_line, plain, table
from game_events.plugins.catalog.schema_history import CHANGE_COLUMNS
from game_events.plugins.catalog.schema_versions import Difference

#: Dagster's pages have tables and struck text, too.
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "![x](http://evil.example/beacon.png?u=1)",
    "[click](javascript:alert(1))",
    "[a]: http://evil.example 'reference'",
    "x\n\n# Everything is well\n\n|",
    "# well",
    "<img src=x onerror=alert(1)>",
    "<https://evil.example>",
    "a | b\n---|---\n1 | 2",
    "```sh\nrm -rf /\n```",
    "- item",
    "12. item",
    "===",
    "_under_ and *star* and __both__ ~~struck~~ `code`",
    "&lt;b&gt; &#33;",
    "\\![x](y)",
    "\x1b[31mred\x07 \u202ereversed",
    "    four blanks",
    "> quoted",
    "* * *",
    "!",
]


def read(markdown: str) -> list[str]:
    """What Markdown is made of: kinds of its parts, and texts."""
    found = []
    for token in READER.parse(markdown):
        found += [child.content if child.type == "text" else child.type for child in token.children or [token]]
    return found


def assert_text(text: str, *, before: str = "", kinds: tuple[list[str], list[str]]) -> None:
    first, last = kinds
    parts = read(before + as_text(text))
    assert parts[: len(first)] == first, text
    inside = parts[len(first) : len(parts) - len(last)]
    assert "".join(inside) == one_line(text), text
    assert parts[len(parts) - len(last) :] == last


PARAGRAPH = (["paragraph_open"], ["paragraph_close"])
ITEM = (
    ["bullet_list_open", "list_item_open", "paragraph_open"],
    ["paragraph_close", "list_item_close", "bullet_list_close"],
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_as_it_is(text):
    assert_text(text, kinds=PARAGRAPH)
    assert_text(text, before="- ", kinds=ITEM)
    assert plain(as_text(text)) == one_line(text)


@given(st.text(st.sampled_from("\\`*_{}[]<>()#+-.!|~&=:;'\"/$ \n\tab1") | st.characters(), min_size=1))
def test_every_text_is_shown_as_it_is(text):
    if one_line(text):
        assert_text(text, kinds=PARAGRAPH)
    assert plain(as_text(text)) == one_line(text)


@pytest.mark.parametrize("text", ["bronze_events: 1,234 rows (rule a, 5%)", "game rummy-7: it's /a/b.parquet; x = 1"])
def test_usual_texts_are_not_changed(text):
    assert as_text(text) == text


def test_a_schemas_changes_are_cells_of_a_table_and_a_compilers_words_are_plain_text():
    rows = [dict.fromkeys(CHANGE_COLUMNS, text) for text in HOSTILE]
    found = Difference("x", rows, "some are left out").metadata(2)
    assert isinstance(found["changes_in_version_2"], dg.TableMetadataValue)
    cells = [value for record in found["changes_in_version_2"].records for value in record.data.values()]
    assert all(str(cell).isprintable() for cell in cells)
    (said,) = Difference("not comparable: ![x](y)\n# z").metadata(2).values()
    assert isinstance(said, dg.TextMetadataValue)


def test_a_table_has_numbers_as_numbers():
    found = table(("name", "rows"), [{"name": "a\nb", "rows": 3}])
    assert [c.type for c in found.schema.columns] == ["string", "int"]
    assert found.records[0].data == {"name": "a b", "rows": 3}


def test_markdown_is_made_only_of_numbers_and_of_texts_that_were_escaped():
    """A new `MetadataValue.md` is listed here, with what it is made of."""
    root = Path(game_events.orchestration.__file__).parent
    made = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "md"
    }
    assert made == {"continuous.py", "checks.py"}  # durations and names of layers; escaped troubles
