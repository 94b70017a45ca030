"""What peers need beside this project's environment, made at the first use below `.benchmark-peers/`: jars, a program."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from game_events.jvm.jars import HERE as STACK
from game_events.jvm.jars import find_java

HERE = Path(__file__).parent
MADE = HERE.parents[1] / ".benchmark-peers"
IVY_FILE, NATIVE = HERE / "ivy.xml", HERE / "native"
TIMEOUT_S = 1800

Say = Callable[[str], None]


def spark_jars(say: Say) -> tuple[Path, ...]:
    """The jars of the peers on Spark, resolved by the Ivy that PySpark ships; again if the Ivy file has changed since."""
    named = hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]
    folder = MADE / f"jars-{named}"
    if not folder.is_dir():
        say("fetching the jars of the peers on Spark (once)")
        MADE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MADE) as temporary:
            _resolve(Path(temporary))
            (Path(temporary) / "streaming").rename(folder)
    return tuple(sorted(folder.glob("*.jar")))


def native_program(say: Say) -> Path | None:
    """The native loop, compiled with the versions of its lock file; None: there is no cargo, so its figures are left out."""
    cargo = shutil.which("cargo")
    if cargo is None:
        say("no cargo: the native loop is left out")
        return None
    say("compiling the native loop (the first time some minutes)")
    target = MADE / "native"
    places = ["--manifest-path", str(NATIVE / "Cargo.toml"), "--target-dir", str(target)]
    _run([cargo, "build", "--release", "--locked", *places], HERE)
    return target / "release" / "native"


def _resolve(folder: Path) -> None:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None, "PySpark is not installed"
    (ivy,) = (Path(found.origin).parent / "jars").glob("ivy-*.jar")
    settings = ["-settings", str(STACK / "ivysettings.xml"), "-ivy", str(IVY_FILE)]
    retrieve = ["-retrieve", "[conf]/[artifact]-[revision].[ext]"]
    _run([str(find_java()), f"-Dcache.dir={folder / 'cache'}", "-jar", str(ivy), *settings, *retrieve], folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
