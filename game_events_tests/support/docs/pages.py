"""The documents as a reader's blocks: what is run, what says what comes out, and what is marked as not run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
#: Pages that scripts/docs_pages.py generates from the code, and one that is written.
REFERENCE = DOCS / "reference"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *DECISIONS, REFERENCE / "transaction-ids.md"]

#: What stands in a comment right above a block that is not run as it is; `every block ...`: from here to the page's end.
NOT_RUN, RUN_BY = "not run", "run by"
_MARK = re.compile(rf"<!--\s*(every block )?({NOT_RUN}|{RUN_BY}):\s*(.*?)\s*-->\s*", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: file name of its page.
        line: where it begins.
        language: the word behind the fence.
        text: what is in it.
        mark: `not run` or `run by`; empty: it is run.
        reason: what the mark says: why not, or the test that runs it.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    found = []
    mark, reason, every = "", "", ("", "")
    for token in _MARKDOWN.parse(page.read_text()):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("fence", "code_block"):
            found.append(Block(page.name, line, token.info.strip(), token.content, mark or every[0], reason or every[1]))
        marked = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        mark, reason = (marked[2], marked[3]) if marked else ("", "")
        if marked and marked[1]:
            every, mark, reason = (mark, reason), "", ""
    return found


def inline_code(page: Path) -> list[str]:
    """Every piece of code within the text of a page."""
    tokens = [child for token in _MARKDOWN.parse(page.read_text()) for child in token.children or []]
    return [token.content for token in tokens if token.type == "code_inline"]
