"""Node packages for tests, as `package-lock.json` pins them: version and hash of each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from game_events.jvm.jars import cache_dir

HERE = Path(__file__).parent
PINNED = ("package.json", "package-lock.json")
INSTALL_S, RUN_S = 600, 120


def node_packages() -> Path:
    """A folder with `node_modules`, filled once for each state of the lock file; skips the test if there is no Node."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js 20 or newer with npm is needed: the JavaScript client and schemas of tests come from there")
    pinned = b"".join((HERE / name).read_bytes() for name in PINNED)
    folder = cache_dir() / f"javascript-{hashlib.sha256(pinned).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "javascript.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incomplete-") as temporary:
                whole = Path(temporary) / folder.name
                whole.mkdir()
                for name in PINNED:
                    shutil.copy(HERE / name, whole)
                # No package's own scripts are run.
                command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
                done = subprocess.run(command, cwd=whole, capture_output=True, text=True, timeout=INSTALL_S, check=False)
                assert done.returncode == 0, done.stderr
                whole.rename(folder)
    return folder


def run_script(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """What a script of this folder answers to a job: one JSON object each way."""
    packages = node_packages()
    done = subprocess.run(
        ["node", str(HERE / name)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "CLIENTS": str(packages)},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))
