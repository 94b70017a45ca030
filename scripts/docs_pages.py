"""Gathers the pages of the docs site in build/docs, where zensical reads them (zensical.toml).

docs/ and the README as they are, with their links turned to where they lie here, and one page that is made: the command line's
own help.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from game_events.cli.main import app

ROOT = Path(__file__).parents[1]
COMMANDS = "commands.md"
#: Links to files, not to the web or within a page.
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*|)\)")


def gather(root: Path, to: Path) -> None:
    """Make the folder of pages anew.

    Raises:
        SystemExit: the navigation lacks a page, or names one that there is not.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root / "docs", to)
    for page in to.glob("*.md"):
        page.write_text(relinked(page.read_text(), "docs"))
    (to / "index.md").write_text(relinked((root / "README.md").read_text(), ""))
    (to / COMMANDS).write_text(commands())
    named = set(pages_of(tomllib.loads((root / "zensical.toml").read_text())["project"]["nav"]))
    there = {page.name for page in to.glob("*.md")}
    if there - named:
        sys.exit(f"zensical.toml: `nav` lacks {', '.join(sorted(there - named))}: put each where a reader will look for it")
    if named - there:
        sys.exit(f"zensical.toml: `nav` names pages that there are not: {', '.join(sorted(named - there))}")


def relinked(text: str, folder: str) -> str:
    """A page's text with its links as they are here; of those to files that are no pages only the words are left."""

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path == "README.md":
            return f"[{words}](index.md{anchor})"
        return f"[{words}]({path.removeprefix('docs/')}{anchor})" if path.startswith("docs/") else words

    return _LINK.sub(link, text)


def pages_of(nav: list[Any]) -> list[str]:
    """The pages of a navigation, in its order."""
    pages: list[str] = []
    for entry in nav:
        for value in entry.values():
            pages += pages_of(value) if isinstance(value, list) else [value]
    return pages


def commands() -> str:
    """Every command with its options, as `--help` says."""
    command = typer.main.get_command(app)
    with command.make_context("game-events", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=command, ctx=context, name="game-events", title="Commands")
    # The headings that follow say more than its lists of commands, whose texts it cuts off.
    text = re.sub(r"^\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text, flags=re.MULTILINE)
    # Texts of help are plain: outside of code, what looks like a tag is none.
    return re.sub(r"`[^`]*`|<", lambda found: found[0].replace("<", "&lt;") if found[0] == "<" else found[0], text)


if __name__ == "__main__":
    gather(ROOT, ROOT / "build" / "docs")
