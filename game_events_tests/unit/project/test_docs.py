"""What the documents say is true."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import typer.main

import game_events
from game_events.cli.main import command_line
from game_events.config.settings import settings_class

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
PACKAGE = ROOT / "game_events"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()
#: All of them that a reader may meet; what is generated of the code is not prose.
DOCUMENTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = [ROOT / "docs" / "reference" / name for name in ("commands.md", "settings.md")]
MAX_LINE, MAX_WORDS = 120, 52_000


def test_every_setting_is_in_the_reference_with_its_default():
    described = runpy.run_path(str(ROOT / "scripts" / "docs_pages.py"))["meanings"]()
    for name, field in settings_class().model_fields.items():
        line = next((line for line in SETTINGS.splitlines() if line.startswith(f"| `{name.upper()}`, ")), None)
        assert line is not None, name
        assert described[name].replace("|", "\\|") in line, name
        default = field.get_default(call_default_factory=True)
        if isinstance(default, int | str | Path) and default != "":
            assert f"| `{default}` |" in line, (name, default)


def test_every_setting_of_the_readme_exists_with_its_default():
    rows = re.findall(r"^\| `([A-Z_]+)` \|(.*?)\|", README, re.MULTILINE)
    assert len(rows) >= 10
    for name, default in ((name, cell.strip()) for name, cell in rows):
        value = settings_class().model_fields[name.lower()].get_default(call_default_factory=True)
        assert default == ("" if value is None or value == () else f"`{value}`"), name


def test_every_command_of_the_readme_exists():
    commands = set(typer.main.get_command(command_line()).commands)
    named = set(re.findall(r"(?:`|^\.venv/bin/)game-events ([a-z-]+)", README, re.MULTILINE))
    assert named
    assert named <= commands


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= targets


def test_every_package_is_in_the_architecture():
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")} | {p.name for p in PACKAGE.glob("*.py")} - {"__init__.py"}
    table = re.findall(r"^\| (`.*) \|", ARCHITECTURE.split("## Packages")[1].split("\n## ")[0], re.MULTILINE)
    assert packages <= set(re.findall(r"`([\w.]+)`", " ".join(table)))


def test_every_function_and_file_of_the_architecture_exists():
    steps = re.findall(r"`(\w+)`\s+\(`([\w/]+\.py)`\)", ARCHITECTURE)
    assert len(steps) >= 12
    for function, file in steps:
        assert re.search(rf"^\s*(def|class) {function}\b", (PACKAGE / file).read_text(), re.MULTILINE), (function, file)
    for document in [
        ROOT / "docs" / "architecture.md",
        ROOT / "docs" / "contributing.md",
        *(ROOT / "docs" / "decisions").glob("*.md"),
    ]:
        for file in re.findall(r"`([a-z_]+/[a-z_0-9/]+\.py)`", document.read_text()):
            assert (PACKAGE / file).is_file() or (ROOT / file).is_file(), (document.name, file)


def test_the_glossary_has_at_most_twenty_words():
    rows = re.findall(r"^\| (.+?) \|", ARCHITECTURE.split("## Glossary")[1].split("\n## ")[0], re.MULTILINE)[2:]
    assert 0 < len(rows) <= 20


def test_links_between_the_documents_lead_somewhere():
    for document in [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "AGENTS.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_lines_of_prose_are_short():
    written = [document for document in DOCUMENTS if document not in GENERATED]
    for document in [*written, ROOT / "CHANGELOG.md", ROOT / "AGENTS.md"]:
        prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        long = [
            line for line in prose.splitlines() if len(line) > MAX_LINE and not re.match(r"\||<!--|!?\[[^]]*\]\(\S+\)$", line)
        ]
        assert not long, f"{document.name}: {long}"


def test_all_documents_together_are_short():
    words = {document.name: len(document.read_text().split()) for document in DOCUMENTS}
    assert sum(words.values()) <= MAX_WORDS, words


def test_one_version_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert game_events.__version__ == declared
    assert f"\n## [{declared}] - " in (ROOT / "CHANGELOG.md").read_text()
