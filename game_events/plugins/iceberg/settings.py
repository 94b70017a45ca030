"""Settings of the tables' Iceberg metadata; the secrets of pyiceberg's own configuration, found without its library."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import Field, SecretStr

from game_events.config.masking import is_credential, login_secrets
from game_events.config.pipeline_settings import SettingsGroup

PREFIX = "pyiceberg_"
FILE = ".pyiceberg.yaml"

#: Names of what carries a login, though no word in them says so.
_LOGIN = re.compile(r"authorization|cookie|connection-string", re.IGNORECASE)

#: Parts of a connection string that are secret.
_KEYS = ("accountkey=", "sharedaccesssignature=")


class IcebergSettings(SettingsGroup):
    """Iceberg beside Delta."""

    group: ClassVar[str] = "discovery"

    # --- Iceberg (docs/iceberg.md)
    iceberg: bool = False
    """each table is an Iceberg table, too: after each run, a snapshot over the same files for each table that has changed"""
    iceberg_catalog: str | None = Field(None, min_length=1)
    """name of a catalog in pyiceberg's own configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`); without it: a file,
    `_iceberg/catalog.db` below the lakehouse"""
    iceberg_namespace: str = Field("game_events", pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")
    """namespace of the tables in that catalog"""
    iceberg_timeout_s: float = Field(120.0, gt=0, le=3600)
    """seconds that a run waits for the catalog at most; the next run catches up"""

    def further_secrets(self) -> Iterator[str]:
        """Credentials of pyiceberg's own configuration, of which an error may repeat some."""
        if self.iceberg or self.iceberg_catalog is not None:
            yield from secrets_of_pyiceberg()


def secrets_of_pyiceberg() -> Iterator[str]:
    """All values that are credentials, or hold one, with the parts that may appear alone.

    Of whatever catalog they are, and whether they are of the environment or of any file that pyiceberg may read.
    """
    for name, value in _configured():
        yield from _parts(name, value)


def _configured() -> Iterator[tuple[str, str]]:
    """Name -> value of all properties."""
    for name, value in os.environ.items():
        if name.lower().startswith(PREFIX):
            yield name.lower().replace("__", ".").replace("_", "-"), value
    # pyiceberg takes the first of these; another working folder may have had another one.
    for folder in (os.environ.get("PYICEBERG_HOME"), Path.home(), Path.cwd()):
        if folder:
            file = Path(folder, FILE)
            with suppress(OSError):
                yield from _in_file(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _in_file(file: Path, changed: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG001 - a part of the key
    """Properties of a file. One that is no YAML has none, and of an error about it no text is shown (`current.why`)."""
    try:
        return tuple(_flat("", yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, RecursionError):
        return ()


def _flat(name: str, node: yaml.Node | None) -> Iterator[tuple[str, str]]:
    """The texts of a file as they are written there: `0123` is a password, not a number."""
    if isinstance(node, yaml.MappingNode):
        for key, inner in node.value:
            yield from _flat(f"{name}.{key.value}", inner)
    elif isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            yield from _flat(name, inner)
    elif node is not None:
        yield name, str(node.value)


def _parts(name: str, value: str) -> Iterator[str]:
    if "://" in value:
        yield from _login_of(value)
    if not is_credential(name, value) and not _LOGIN.search(name):
        return
    yield value
    yield value.rpartition(" ")[2]  # `Bearer ...`
    yield from (part.partition("=")[2] for part in value.split(";") if part.lower().startswith(_KEYS))
    user, colon, password = value.partition(":")  # `client:secret`
    if colon and "://" not in value:
        yield from login_secrets(user, SecretStr(password))


def _login_of(address: str) -> Iterator[str]:
    try:
        password = urlsplit(address).password
    except ValueError:
        return
    if password:
        yield from (password, unquote(password))
