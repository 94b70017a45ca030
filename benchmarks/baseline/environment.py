"""The baseline's own environment: a venv with PySpark 3.4 and a folder of jars, made at the first use."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from game_events.jvm.jars import HERE as STACK
from game_events.jvm.java import find_java

HERE = Path(__file__).parent
VENV = HERE.parent.parent / ".baseline-venv"
PINS = ("requirements-build.txt", "requirements.txt")
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Environment:
    """The interpreter that has PySpark 3.4, and the jars for it."""

    python: Path
    jars: tuple[Path, ...]


def environment(say: Callable[[str], None]) -> Environment:
    """The environment, made again if a pin has changed since."""
    pins = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in (*PINS, "ivy.xml"))).hexdigest()
    python, jars, ready = VENV / "bin" / "python", VENV / "jars", VENV / ".ready"
    if not ready.is_file() or ready.read_text() != pins:
        say("making the baseline's environment (once; a minute or two)")
        shutil.rmtree(VENV, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(VENV)])
        for name in PINS:
            install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
            _run([str(python), "-m", "pip", *install, "--require-hashes", "-r", str(HERE / name)])
        _fetch(jars)
        ready.write_text(pins)
    return Environment(python, tuple(sorted((jars / "spark").glob("*.jar"))))


def _fetch(target: Path) -> None:
    """The jars, by the Ivy that PySpark ships."""
    (ivy,) = VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar")
    with tempfile.TemporaryDirectory() as cache:
        options = ["-settings", str(STACK / "ivysettings.xml"), "-ivy", str(HERE / "ivy.xml")]
        pattern = f"{target.name}/[conf]/[artifact]-[revision].[ext]"
        _run([str(find_java()), f"-Dcache.dir={cache}", "-jar", str(ivy), *options, "-retrieve", pattern], target.parent)


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
