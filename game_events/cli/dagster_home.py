"""The folder of the Dagster instance that the commands use, `dagster dev` and `dg dev` too (docs/dagster.md)."""

import hashlib
import logging
import os
import shlex
from pathlib import Path

from dotenv import dotenv_values

from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError
from game_events.jvm.private_folders import private_folder

VARIABLE = "DAGSTER_HOME"
#: Read by Dagster's own commands, too, from the folder in which they are started.
ENV_FILE = Path(".env")
INSTANCE_FILE, WORKSPACE_FILE = "dagster.yaml", "workspace.yaml"
#: File beside `dagster.yaml`: digest of the project's own text that was last written there, or that people were told of.
DIGEST_FILE = ".dagster.yaml.sha256"

_log = logging.getLogger(__name__)


def find_dagster_home(settings: Settings) -> Path:
    """Dagster's folder: ``DAGSTER_HOME``, or `dagster` below the state folder; nothing is made or changed.

    ``DAGSTER_HOME`` is read from the environment and, unless that names a state folder, from `.env`.

    Raises:
        ConfigurationError: `DAGSTER_HOME` is no absolute path (Dagster asks for one).
    """
    named = os.environ.get(VARIABLE) or (None if _state_dir_in_environment() else dotenv_values(ENV_FILE).get(VARIABLE))
    if not named:
        return _below_state(settings)
    if not Path(named).is_absolute():
        raise ConfigurationError(f"{VARIABLE}: {named!r} is not an absolute path; unset it to use {settings.state_dir}/dagster")
    return Path(named)


def dagster_home(settings: Settings) -> Path:
    """Dagster's folder, made where it is missing.

    The one below the state folder gets a `dagster.yaml`, and so does a ``DAGSTER_HOME`` that is new or empty: without one
    Dagster warns at each start, sends its statistics, and knows of no pools. One that was edited stays as it is.

    Raises:
        ConfigurationError: `DAGSTER_HOME` is no absolute path, or the folder cannot be made or read.
    """
    home = find_dagster_home(settings)
    if home == _below_state(settings):
        private_folder(home)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home == _below_state(settings) or (home / DIGEST_FILE).exists() or not any(home.iterdir()):
            _write_instance_file(home)
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: the folder {home} cannot be made: {error.strerror}") from error
    return home


def dagster_file(name: str) -> Path:
    """`dagster.yaml` or `workspace.yaml`: the one of the current folder, or the one that comes with this package."""
    here = Path(name)
    return here.resolve() if here.is_file() else Path(__file__).parent / "instance" / name


def share_dagster_home(settings: Settings) -> None:
    """Make Dagster's folder and name it in `.env`, so that `dagster dev` and `dg dev` in this folder use the same one.

    No line is written if `.env` has one, or if the environment names the folder or the state folder; a file that cannot be
    written is a warning.
    """
    home = dagster_home(settings)
    if VARIABLE in os.environ or VARIABLE in dotenv_values(ENV_FILE) or _state_dir_in_environment():
        return
    line = f"{VARIABLE}={shlex.quote(str(home))}"
    try:
        before = ENV_FILE.read_text() if ENV_FILE.exists() else ""
        with ENV_FILE.open("a") as file:
            file.write(("" if before.endswith("\n") or not before else "\n") + f"{line}\n")
    except OSError as error:
        # Only Dagster's own commands need the line.
        _log.warning("%s cannot be written (%s): set %s for `dagster dev`", ENV_FILE.resolve(), error.strerror, line)


def _below_state(settings: Settings) -> Path:
    return (settings.state_dir / "dagster").resolve()


def _state_dir_in_environment() -> bool:
    return bool(os.environ.get("GAME_EVENTS_STATE_DIR"))


def _write_instance_file(home: Path) -> None:
    """Write `dagster.yaml`, unless there is one that this project has not written."""
    source, target, record = dagster_file(INSTANCE_FILE), home / INSTANCE_FILE, home / DIGEST_FILE
    text = source.read_bytes()
    present = target.read_bytes() if target.exists() else None
    known = record.read_text() if record.exists() else None
    if present is None or (present != text and _digest(present) == known):
        new = home / f".{INSTANCE_FILE}.{os.getpid()}"  # another process may read the file at the same time
        new.write_bytes(text)
        new.replace(target)
    elif present != text and known != _digest(text):
        _log.warning("%s is not this version's own and stays as it is; compare it with %s", target, source)
    if known != _digest(text):
        record.write_text(_digest(text))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


if __name__ == "__main__":  # `make setup`
    share_dagster_home(load_settings())
