"""What the documents say is true."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from game_events.cli.main import app
from game_events.config.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_setting_is_in_the_readme_with_its_default():
    for name, field in Settings.model_fields.items():
        line = next((line for line in README.splitlines() if re.search(rf"^\| [^|]*`{name.upper()}`", line)), None)
        assert line is not None, name
        default = field.get_default(call_default_factory=True)
        if isinstance(default, int | str | Path) and default != "":
            assert f"`{default}`" in line, (name, default)


def test_every_command_of_the_readme_exists():
    commands = set(typer.main.get_command(app).commands)
    named = set(re.findall(r"`game-events ([a-z-]+)", README))
    assert named
    assert named <= commands


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= targets


def test_every_file_of_the_architecture_exists_and_every_file_is_in_it():
    named = set(re.findall(r"`((?:[a-z_]+/)?[a-z_0-9]+\.py)`", ARCHITECTURE))
    there = {str(p.relative_to(ROOT / "game_events")) for p in (ROOT / "game_events").rglob("*.py")}
    assert {n for n in named if "/" in n} <= there
    for file in there:
        folder, _, name = file.rpartition("/")
        if folder in ("sources", "decoding", "lakehouse", "files", "pipeline", "sinks") and name != "__init__.py":
            assert name in ARCHITECTURE, file


def test_links_between_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
