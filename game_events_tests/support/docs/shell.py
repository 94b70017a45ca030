"""Blocks of shell in a folder of their own, in a real bash, where `game-events` is quick.

A command costs three seconds to start and six more if it needs Spark. So the `game-events` that a block finds (on its PATH and
as `.venv/bin/game-events`) hands its arguments, environment, folder and streams to this process, which runs the same `main` on
the tests' shared Spark session. Commands that serve until they are ended are processes of their own.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import psutil

from game_events.cli.main import main
from game_events_tests.support.docs.usage import NAME, wrong_usage
from game_events_tests.support.processes import running

TIMEOUT_S = 240.0
#: They serve until they are ended, so blocks start them with `&`; they end with their page.
SERVERS = ("mock-api",)
#: They would start or stop what all tests share, or never end.
SHARED = ("up", "demo", "stack")
_HAND_OVER = """#!{python} -IS
import array, json, os, socket, sys
if sys.argv[1:2] and sys.argv[1] in {servers!r}:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    order = json.dumps([{tool!r}, sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    server.sendmsg([len(order).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    server.sendall(order)
    sys.exit(int.from_bytes(server.recv(1), "big"))
"""


def bare_environment() -> dict[str, str]:
    """The tests' environment without settings: as it is for somebody who has not heard of this project."""
    kept = ("GAME_EVENTS_CACHE",)
    return {k: v for k, v in os.environ.items() if k in kept or not (k.startswith("GAME_EVENTS_") or k == "DAGSTER_HOME")}


class Shell:
    """One page's shell: environment and folder go on from block to block.

    Attributes:
        folder: where blocks begin.
        environment: what the blocks so far have exported.
        said: standard output and error of the last block.
        dry: commands are only looked at: wrong ones are in `wrong`, all others do nothing.
        refused: commands that blocks must not have.
    """

    def __init__(
        self, folder: Path, environment: dict[str, str], *, dry: bool = False, refused: Sequence[str] = SHARED
    ) -> None:
        self.folder, self.environment, self.dry, self.refused = folder, dict(environment), dry, refused
        self.said = ""
        self.wrong: list[str] = []
        self._at = folder
        self._left: list[psutil.Process] = []
        self._server = socket.socket(socket.AF_UNIX)
        # A path of a socket must be short.
        self._socket_folder = tempfile.mkdtemp(prefix="docs-")
        address = f"{self._socket_folder}/s"
        self._server.bind(address)
        self._server.listen()
        self._server.settimeout(0.05)
        binaries = folder / ".venv" / "bin"
        binaries.mkdir(parents=True, exist_ok=True)
        real = str(Path(sys.executable).with_name(NAME))
        for tool in (NAME, "make") if dry else (NAME,):
            script = _HAND_OVER.format(
                python=sys.executable, servers=() if dry else SERVERS, real=real, address=address, tool=tool
            )
            _program(binaries / tool, script)
        if not dry:
            _program(binaries / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        others = "" if dry else os.pathsep + os.environ["PATH"]
        self.environment |= {"PATH": f"{binaries}{others}", "COLUMNS": "120"}

    def close(self) -> None:
        """End what the blocks have left running."""
        for process in self._left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        self._server.close()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def run(self, script: str) -> int:
        """Run a block; its exit code."""
        state = Path(self._socket_folder) / "state"
        head = "set -euo pipefail\n"
        if self.dry:
            # Whatever is no command of this project is not there, and does nothing.
            head = "command_not_found_handle() { :; }; cd() { :; }; source() { :; }; kill() { :; }; wait() { :; }\n"
        python = f"{sys.executable} -ISc 'import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))'"
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["/bin/bash", "-c", f"{head}{script}\n{python} > {state}"],
                cwd=self._at,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            deadline = time.monotonic() + TIMEOUT_S
            while process.poll() is None:
                assert time.monotonic() < deadline, f"not done after {TIMEOUT_S:.0f} s:\n{script}"
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._server.accept()
                    with connection:
                        self._serve(connection)
            self._left += [other for other in running() if _is_in_group(other, process.pid)]
            output.seek(0)
            self.said = output.read().decode(errors="replace")
        if process.returncode == 0:
            at, self.environment = json.loads(state.read_text())
            self._at = Path(at)
        return process.returncode

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        head, ancillary, *_ = connection.recvmsg(8, socket.CMSG_SPACE(3 * 4))
        handles = array.array("i")
        handles.frombytes(ancillary[0][2])
        with connection.makefile("rb") as orders:
            tool, arguments, environment, at = json.loads(orders.read(int.from_bytes(head, "big")))
        try:
            if self.dry:
                code = self._look_at(tool, arguments)
            else:
                with _in_place_of(handles, environment, at):
                    code = self._run(arguments)
        finally:
            for handle in handles:
                os.close(handle)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(bytes([code]))

    def _look_at(self, tool: str, arguments: list[str]) -> int:
        if tool == "make":
            targets = [a for a in arguments if "=" not in a and not a.startswith("-")]
            makefile = Path(__file__).parents[3] / "Makefile"
            there = makefile.read_text()
            self.wrong += [f"make {t}: the Makefile has no such target" for t in targets if f"\n{t}:" not in there]
        elif problem := wrong_usage(arguments):
            self.wrong.append(f"{NAME} {' '.join(arguments)}: {problem}")
        return 0

    def _run(self, arguments: list[str]) -> int:
        if arguments[:1] and arguments[0] in self.refused:
            print(f"`{NAME} {arguments[0]}` is not for blocks that are run: mark the block (docs/contributing.md)")
            return 1
        with patch.object(sys, "argv", [NAME, *arguments]):
            try:
                main()
            except SystemExit as ended:
                return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            except Exception:  # noqa: BLE001 - a process would print it and end as well
                traceback.print_exc()
                return 1
        return 0


def _is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group
    except ProcessLookupError:
        return False


def _program(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


@contextlib.contextmanager
def _in_place_of(handles: array.array[int], environment: dict[str, str], at: str) -> Iterator[None]:
    """The caller's environment, folder and streams instead of one's own."""
    own_environment, own_folder = dict(os.environ), Path.cwd()
    own = [os.dup(n) for n in range(3)]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for n, handle in enumerate(handles):
            os.dup2(handle, n)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(at)
        with (
            open(0, closefd=False) as stdin,
            open(1, "w", buffering=1, closefd=False) as stdout,
            open(2, "w", buffering=1, closefd=False) as stderr,
            patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr),
        ):
            yield
    finally:
        os.chdir(own_folder)
        os.environ.clear()
        os.environ.update(own_environment)
        for n, handle in enumerate(own):
            os.dup2(handle, n)
            os.close(handle)
