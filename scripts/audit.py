"""Asks osv.dev which of the locked Python packages have known holes; fails if one has (`make audit`).

uv audits only projects with a lock of its own kind, so one is made of requirements-dev.lock, elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
#: `name[extra]==version ; marker`, without the hashes.
_PIN = re.compile(r"^([A-Za-z0-9][^\s]*==[^\s;]+)( ; [^\\]+)?", re.MULTILINE)


def pins(lock: str) -> list[str]:
    """The requirements of a lock."""
    return [(name + (marker or "")).strip() for name, marker in _PIN.findall(lock)]


def main() -> int:
    """Lock the same versions for uv, and have it ask."""
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory() as folder:
        listed = ",\n".join(f"  {pin!r}" for pin in pins(LOCK.read_text()))
        project = f'[project]\nname = "locked"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [\n{listed}\n]\n'
        (Path(folder) / "pyproject.toml").write_text(project)
        subprocess.run([uv, "lock", "--quiet"], cwd=folder, check=True)
        return subprocess.run([uv, "audit", "--frozen"], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
