"""Makes the archive of Spark's classes for this Java and this Spark: `python -m game_events.plugins.local.class_archive`.

Java writes the classes that a JVM has loaded when it ends; so a small run over a local stack is made, in a temporary folder.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.errors import GameEventsError
from game_events.jvm.class_archive import archive_of, archiving_options, is_usable, keep
from game_events.jvm.jars import spark_jars
from game_events.jvm.java import EXTRA_JAVA_OPTIONS
from game_events.jvm.private_folders import private_folder
from game_events.plugins.local.servers import local_stack
from game_events.spark.config import LOG_OPTION

#: `game-events` as a process of its own, in this environment.
GAME_EVENTS = (sys.executable, "-c", "from game_events.cli.forked_command import command_line; command_line()")
#: A run of seconds, and its JVM, which writes the archive when the run is over; a busy machine takes minutes.
TIMEOUT_S, LOOK_S = 900, 0.2


def make_archive(on_progress: Callable[[str], None]) -> Path:
    """The archive, made unless there is one.

    Raises:
        GameEventsError, OSError, subprocess.SubprocessError: it cannot be made. Everything works without it.
    """
    archive = archive_of(spark_jars())
    if is_usable(archive):
        return archive
    on_progress("archiving Spark's classes for quicker starts (200 MB, once for each virtual environment; about a minute)")
    # On the same disk as the archive, which is renamed.
    with tempfile.TemporaryDirectory(dir=private_folder(archive.parent), prefix="incomplete-") as name:
        folder = Path(name)
        written = folder / "classes"
        environment = _environment(folder, written)
        local_stack.up(folder / "state")
        try:
            _call(folder, environment, "produce", "--records", "10")
            _call(folder, environment, "run")
            _wait_for_jvm(written)
        finally:
            local_stack.down(folder / "state", delete_data=True)
        keep(written, archive)
    return archive


def _environment(folder: Path, written: Path) -> Mapping[str, str]:
    """Without the settings of the caller: none of its tables and servers is used."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX) or key == f"{ENV_PREFIX}CACHE"}
    (folder / "no-settings.yaml").touch()
    options = " ".join((LOG_OPTION, *archiving_options(written)))
    return kept | {
        f"{ENV_PREFIX}CONFIG": str(folder / "no-settings.yaml"),
        f"{ENV_PREFIX}STATE_DIR": str(folder / "state"),
        f"{ENV_PREFIX}LAKEHOUSE": str(folder / "lakehouse"),
        f"{ENV_PREFIX}SPARK_CONF": f'{{"{EXTRA_JAVA_OPTIONS}": "{options}"}}',
    }


def _call(folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    """A command; subprocess.SubprocessError if it fails."""
    done = subprocess.run(
        [*GAME_EVENTS, *arguments],
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise subprocess.SubprocessError(f"game-events {arguments[0]} failed: {done.stdout[-1000:]}")


def _wait_for_jvm(written: Path) -> None:
    """Wait until no process has that file in its command line; subprocess.TimeoutExpired after too long."""
    until = time.monotonic() + TIMEOUT_S
    while any(str(written) in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])):
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired("java", TIMEOUT_S)
        time.sleep(LOOK_S)


def main() -> int:
    """Make it, and print where it is; without it everything works, so that no failure is one of the caller."""
    try:
        print(f"archive of Spark's classes: {make_archive(print)}")
    except (GameEventsError, OSError, subprocess.SubprocessError) as error:
        print(f"there is no archive of Spark's classes, starts take longer without it: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
