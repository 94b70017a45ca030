"""`make docs`: the documents as a site that needs nobody else's server."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from game_events_tests.support.docs.pages import DOCS, PAGES, REFERENCE, ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs_pages.py"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("README.md", "zensical.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def build(project: Path) -> subprocess.CompletedProcess[str]:
    """`make docs`, without what it sets up."""
    SCRIPT["gather"](project, project / "build" / "docs")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)


class Loaded(HTMLParser):
    """Addresses that a browser asks for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href") or "")


def test_every_page_is_in_the_site_and_nothing_is_loaded_from_elsewhere(project: Path):
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    site = project / "site"
    pages = {page.relative_to(DOCS) for page in [*PAGES[1:], *REFERENCE.glob("*.md")]}
    for page in [site / "index.html", *(site / page.with_suffix(".html") for page in pages)]:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert loaded.addresses
        missing = [a for a in loaded.addresses if a and not (page.parent / a.split("?")[0]).is_file()]
        assert not missing, f"{page.name}: {missing}"
        assert not re.search(r"fonts\.(googleapis|gstatic)", page.read_text())
    commands = (site / "reference" / "commands.html").read_text()
    assert "game-events quarantine replay" in commands
    assert "&lt;str&gt;" in commands


def test_links_are_turned_to_where_pages_lie_in_the_site():
    relinked = SCRIPT["relinked"]
    assert relinked("![a](docs/images/a.png) [b](docs/b.md#c)", "") == "![a](images/a.png) [b](b.md#c)"
    assert relinked("[a](../README.md#b) [c](c.md)", "docs") == "[a](index.md#b) [c](c.md)"
    assert relinked("[a](https://a.example/b) [b](#b)", "docs") == "[a](https://a.example/b) [b](#b)"
    assert relinked("[a](../sources.md#b) [b](../../README.md)", "docs/reference") == "[a](../sources.md#b) [b](../index.md)"
    assert relinked("see [an example](../examples/iot/README.md).", "docs") == "see an example."
    assert relinked("[why](docs/decisions/) [c](CHANGELOG.md)", "") == "why c"


def test_a_link_that_leads_nowhere_fails_the_build(project: Path):
    for link in ("[x](nowhere.md)", "[x](alerts.md#nowhere)"):
        page = project / "docs" / "security.md"
        before = page.read_text()
        page.write_text(f"{before}\n{link}\n")
        done = build(project)
        assert done.returncode != 0
        assert "does not exist" in done.stdout + done.stderr
        page.write_text(before)


def test_a_page_that_the_navigation_lacks_or_that_is_gone_fails_the_build(project: Path):
    (project / "docs" / "lone.md").write_text("# Lone\n")
    with pytest.raises(SystemExit, match=r"`nav` lacks lone\.md"):
        build(project)
    (project / "docs" / "lone.md").unlink()
    (project / "docs" / "alerts.md").unlink()
    with pytest.raises(SystemExit, match=r"pages that there are not: alerts\.md"):
        build(project)


def test_the_readme_names_every_page():
    readme = PAGES[0].read_text()
    for page in [*DOCS.glob("*.md"), *REFERENCE.glob("*.md")]:
        assert f"](docs/{page.relative_to(DOCS).as_posix()})" in readme, page.name


def test_generated_pages_are_up_to_date():
    assert not SCRIPT["check"](ROOT), "run: make docs"


def test_a_generated_page_that_differs_from_the_code_or_that_nothing_generates_is_noticed(tmp_path: Path):
    shutil.copytree(REFERENCE, tmp_path / "docs" / "reference")
    (tmp_path / "game_events").symlink_to(ROOT / "game_events")
    assert SCRIPT["check"](tmp_path) == []
    settings = tmp_path / "docs" / "reference" / "settings.md"
    settings.write_text(settings.read_text().replace("`KAFKA_TOPIC`", "`TOPIC`"))
    (tmp_path / "docs" / "reference" / "more.md").write_text("# More\n")
    assert SCRIPT["check"](tmp_path) == ["more.md", "settings.md"]
