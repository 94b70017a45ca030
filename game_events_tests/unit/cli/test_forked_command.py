"""Of which code and environment a forked process would be: the digest by which a command finds its server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from game_events.cli import forked_command


def test_code_that_has_changed_is_not_that_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_command, "PACKAGE", tmp_path)
    digests = [forked_command.digest()]
    for change in (
        lambda: (tmp_path / "module.py").write_text("1"),
        lambda: (tmp_path / "module.py").write_text("22"),
        lambda: os.utime(tmp_path / "module.py", (1, 1)),
        lambda: (tmp_path / "module.py").rename(tmp_path / "other.py"),
    ):
        change()
        digests.append(forked_command.digest())
    assert len(set(digests)) == len(digests)
    assert forked_command.digest() == digests[-1]


def test_a_package_that_was_installed_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = forked_command.digest()
    os.utime(tmp_path, (1, 1))
    assert forked_command.digest() != before
