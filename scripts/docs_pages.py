"""Gathers the pages of the docs site in build/docs, where zensical reads them (zensical.toml).

docs/ and the README as they are, with their links turned to where they lie here, and one page that is made: the command line's
own help.
"""

from __future__ import annotations

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


def gather(root: Path, to: Path) -> None:
    """Make the folder of pages anew.

    Raises:
        SystemExit: the navigation lacks a page, or names one that there is not.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root / "docs", to)
    for page in to.glob("*.md"):
        page.write_text(page.read_text().replace("](../README.md", "](index.md"))
    (to / "index.md").write_text((root / "README.md").read_text().replace("](docs/", "]("))
    (to / COMMANDS).write_text(commands())
    named = set(pages_of(tomllib.loads((root / "zensical.toml").read_text())["project"]["nav"]))
    there = {page.name for page in to.glob("*.md")}
    if there - named:
        sys.exit(f"zensical.toml: `nav` lacks {', '.join(sorted(there - named))}: put each where a reader will look for it")
    if named - there:
        sys.exit(f"zensical.toml: `nav` names pages that there are not: {', '.join(sorted(named - there))}")


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
        # typer's type of a context of its own and the one that its help is written with are not one to mypy
        text = get_docs_for_click(obj=command, ctx=context, name="game-events", title="Commands")  # type: ignore[arg-type]
    # The headings that follow say more than its lists of commands, whose texts it cuts off.
    text = re.sub(r"^\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text, flags=re.MULTILINE)
    # Texts of help are plain: outside of code, what looks like a tag is none.
    return re.sub(r"`[^`]*`|<", lambda found: found[0].replace("<", "&lt;") if found[0] == "<" else found[0], text)


if __name__ == "__main__":
    gather(ROOT, ROOT / "build" / "docs")
