"""A real PostgreSQL on loopback, for Dagster's storage; it needs Debian's package `postgresql`, or `initdb` on the PATH."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest

from game_events.plugins.local.servers.server_process import HOST, free_ports

USER, PASSWORD, DATABASE = "dagster", "planted-pg-90b1", "dagster"
#: Root may not run it: whoever does instead, the first that this machine knows.
SERVANTS = ("postgres", "nobody")


@dataclass(frozen=True)
class Postgres:
    """A server with an empty database."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables of docs/dagster.md."""
        values = {"HOST": HOST, "PORT": str(self.port), "USER": USER, "PASSWORD": PASSWORD}
        return {f"DAGSTER_PG_{name}": value for name, value in values.items()}

    def execute(self, sql: str, *values: object, database: str = DATABASE) -> None:
        """Execute a statement by itself, outside of Dagster."""
        connection = psycopg2.connect(host=HOST, port=self.port, user=USER, password=PASSWORD, dbname=database)
        try:
            connection.autocommit = True
            connection.cursor().execute(sql, values)
        finally:
            connection.close()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """While it runs; skips the test where there is no PostgreSQL."""
    programs = _programs()
    servant = _servant()
    folder = Path(tempfile.mkdtemp(prefix="game-events-test-postgres-"))
    try:
        (folder / "password").write_text(PASSWORD)
        if servant:
            for path in (folder, folder / "password"):
                shutil.chown(path, servant)
        (port,) = free_ports(1)
        data = str(folder / "data")
        login = ["--username", USER, "--pwfile", str(folder / "password"), "--auth", "scram-sha-256"]
        _run([programs / "initdb", "-D", data, *login, "--encoding", "UTF8", "--no-sync"], servant, folder)
        options = f"-p {port} -c listen_addresses={HOST} -c unix_socket_directories='' -c fsync=off"
        _run([programs / "pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start"], servant, folder)
        try:
            found = Postgres(port)
            found.execute(f"CREATE DATABASE {DATABASE}", database="postgres")
            yield found
        finally:
            _run([programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"], servant, folder)
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """The folder of PostgreSQL's programs; Debian has one for each version, on nobody's PATH."""
    on_path = shutil.which("initdb")
    found = [Path(on_path)] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1].parent


def _servant() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in SERVANTS if name in known)


def _run(command: Sequence[str | Path], servant: str | None, folder: Path) -> None:
    """Run a program as that user; what it starts keeps none of this process's streams."""
    with (folder / "said").open("wb+") as said:
        done = subprocess.run(
            command, user=servant, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False
        )
        said.seek(0)
        assert done.returncode == 0, f"{command}: {said.read().decode(errors='replace')}"
