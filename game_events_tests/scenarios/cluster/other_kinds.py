"""Tests that have the mark `every_spark`, run once more by a process whose Spark is of another kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
MARK = "@pytest.mark.every_spark"


def marked_files() -> list[str]:
    """Files of integration tests with the mark; to collect the others takes longer."""
    files = [path for path in (ROOT / "game_events_tests" / "integration").rglob("test_*.py") if MARK in path.read_text()]
    return sorted(str(path) for path in files)


def assert_tests_pass_on(kind: str) -> None:
    """The marked tests and this kind's own, with this process's broker and registry."""
    environment = os.environ | {"GAME_EVENTS_TEST_SPARK": kind}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers --strict-config"]
    # What kills servers and leaves jobs behind comes last: other tests' sessions live in its process, too.
    files = [*marked_files(), str(HERE / "on_every_kind.py"), str(HERE / f"on_{kind}.py")]
    done = subprocess.run(
        [*command, "-m", "every_spark", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1750,
        check=False,
    )
    said = (done.stdout + done.stderr)[-8000:]
    assert done.returncode == 0, said
    assert "skipped" not in said
