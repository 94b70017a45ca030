"""Commands in processes of the fork server: as if they had been started by themselves, or not begun there at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from game_events.cli import forked_command
from game_events.cli.forked_command import fork_server, sockets_folder
from game_events_tests.support.waiting import until

#: A server of commands that are Python texts: `run TEXT`.
SERVER = """
import sys
from game_events.cli import fork_server
fork_server.READY_S = 60
fork_server.exit_codes()
fork_server.serve(modules=())
exec(sys.argv[2])
"""
#: What a command line does first; `ALONE`: nothing was begun.
ALONE = 99
NOT_UTF8 = b"\xff"
CLIENT = f"""
import sys
from game_events.cli import forked_command
forked_command.READY_S = 60  # on a busy machine, too
code = forked_command.run_forked(sys.argv)
sys.exit({ALONE} if code is None else code)
"""
SLEEP = "import time; print('begun', flush=True); time.sleep(60)"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of sockets; the path of a socket is short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield sockets_folder()


def start_server() -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as log:  # `game-events up > log`
        return subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE, start_new_session=True
        )


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start_server()
    until(lambda: folder.exists() and any(folder.iterdir()), 60)
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stderr):
        assert stream is not None
        stream.close()


def command(text: str, *more: str, **options: Any) -> subprocess.Popen[str]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", CLIENT, "run", text, *more], text=True, **streams)


def ended(text: str, *more: str, stdin: str = "", **options: Any) -> tuple[int, str, str]:
    process = command(text, *more, **options)
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err


def begun(text: str, **options: Any) -> subprocess.Popen[str]:
    process = command(text, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.usefixtures("server")
def test_streams_arguments_environment_folder_umask_and_exit_code_are_the_commands_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAME_EVENTS_KAFKA_TOPIC", "of this terminal")
    monkeypatch.setenv("NOT_UTF8", os.fsdecode(NOT_UTF8))
    text = """
import os, sys, tempfile
print(sys.argv[3:], os.getcwd(), os.environ["GAME_EVENTS_KAFKA_TOPIC"], os.environb[b"NOT_UTF8"], sys.stdin.read(), end="")
print(tempfile.gettempdir(), sys.path[0] == "", file=sys.stderr)
open("made", "w").close()
sys.exit(7)
"""
    code, out, err = ended(text, "ä", "--x", stdin="typed", cwd=tmp_path, umask=0o027)
    assert (code, out) == (7, f"['ä', '--x'] {tmp_path} of this terminal {NOT_UTF8!r} typed")
    assert err == f"{tempfile.gettempdir()} True\n"
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("sys.exit('why')", 1), ("1 / 0", 1), ("import os; os._exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_however_it_ends_that_is_how_the_command_ends(text: str, code: int) -> None:
    found, out, err = ended(text)
    assert (found, out) == (code, "")
    assert ("ZeroDivisionError" in err, "why" in err) == ("/" in text, "why" in text)


@pytest.mark.usefixtures("server")
def test_what_is_done_at_the_end_of_a_process_is_done() -> None:
    assert ended("import atexit; atexit.register(print, 'done')") == (0, "done\n", "")


@pytest.mark.parametrize("variable", [("PYTHONUNBUFFERED", "1"), ("PYTHONIOENCODING", "latin-1:replace"), ("LC_ALL", "C")])
def test_its_streams_are_those_that_python_makes(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(*variable)
    request.getfixturevalue("server")
    text = """
import os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.seekable())
    stream.reconfigure(errors="backslashreplace")
sys.stdout.flush()
sys.stdout.write("not flushed")
os._exit(0)
"""
    by_itself = subprocess.run([sys.executable, "-c", text], input="", text=True, capture_output=True, check=False)
    assert ended(text) == (0, by_itself.stdout, by_itself.stderr)


def test_output_that_cannot_be_written_is_reported_by_python_alone(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setitem(globals(), "SERVER", SERVER.replace("modules=()", "modules=['duckdb']"))
    request.getfixturevalue("server")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        code, _, err = ended("from game_events.cli import main; print('lost'); main.exit_codes().append(0)", stdout=full)
    assert (code, err.count("\n")) == (120, 2), err


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_it(number: signal.Signals) -> None:
    text = f"""
import signal, sys, time
def caught(found, frame):
    print('caught', found)
    sys.exit(5)
signal.signal({int(number)}, caught)
{SLEEP}
"""
    process = begun(text)
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"caught {int(number)}\n"
    assert process.returncode == 5


@pytest.mark.usefixtures("server")
def test_ctrl_c_and_a_stop_are_what_they_are_for_a_process_of_its_own() -> None:
    process = begun(SLEEP)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    process = begun(SLEEP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("server")
def test_signals_that_are_ignored_stay_so_until_the_command_wants_them() -> None:
    text = """
import signal, sys
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(5))
"""

    def in_the_background() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    process = command(text + SLEEP, preexec_fn=in_the_background)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["True True\n", "begun\n"]
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 5


@pytest.mark.usefixtures("server")
def test_it_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    process = begun(f"import os, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); {SLEEP}")
    forked = psutil.Process(int(file.read_text()))
    assert forked.pid != process.pid
    process.kill()
    _, alive = psutil.wait_procs([forked], timeout=60)
    assert not alive
    process.communicate()


@pytest.mark.usefixtures("server")
def test_many_at_once_are_kept_apart() -> None:
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda n: ended(f"print({n}); sys.exit({n})"), range(24)))
    assert found == [(n, f"{n}\n", "") for n in range(24)]


def test_nothing_listens_so_the_command_goes_on_by_itself(folder: Path) -> None:
    assert ended("print('never')") == (ALONE, "", "")
    assert not folder.exists()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "name",
    ["PYTHONPATH", "LD_LIBRARY_PATH", "LC_ALL", "ARROW_USER_SIMD_LEVEL", "GRPC_TRACE", "SSLKEYLOGFILE", "PROTOCOL_BUFFERS_X"],
)
def test_a_process_with_another_variable_of_those_read_at_the_start_is_not_forked(name: str) -> None:
    assert ended("print('once')", env=os.environ | {"OF_NO_LIBRARY": "x"}) == (0, "once\n", "")
    assert ended("print('never')", env=os.environ | {name: "x"}) == (ALONE, "", "")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "options",
    [
        {"preexec_fn": lambda: os.nice(3)},
        {"preexec_fn": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})},
        {"preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})},
        {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))},
        {"preexec_fn": lambda: os.close(0), "stdin": None},
    ],
)
def test_a_process_that_would_be_another_one_is_not_forked(options: dict[str, Any]) -> None:
    assert ended("print('never')", **options) == (ALONE, "", "")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("sandbox", [["setpriv", "--no-new-privs"], ["unshare", "--uts"]])
def test_a_command_in_a_sandbox_is_not_forked(sandbox: list[str]) -> None:
    if subprocess.run([*sandbox, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"{sandbox[0]} is not possible here")
    done = subprocess.run([*sandbox, sys.executable, "-c", CLIENT, "run", "print('never')"], check=False)
    assert done.returncode == ALONE


@pytest.mark.usefixtures("server")
def test_a_command_that_names_an_open_file_is_not_forked() -> None:
    with tempfile.TemporaryFile() as file:
        name = f"/dev/fd/{file.fileno()}"
        assert ended("print('once')", pass_fds=[file.fileno()]) == (0, "once\n", "")
        assert ended("print('never')", "--file", name, pass_fds=[file.fileno()]) == (ALONE, "", "")
        assert ended("print('never')", env=os.environ | {"KEY_FILE": name}, pass_fds=[file.fileno()]) == (ALONE, "", "")


def in_a_folder_with_too_long_a_name() -> None:
    for _ in range(20):
        Path("d" * 240).mkdir()
        os.chdir("d" * 240)


@pytest.mark.usefixtures("server")
def test_a_folder_that_cannot_be_reached_by_its_name_is_not_sent(folder: Path) -> None:
    options: dict[str, Any] = {"cwd": folder.parent, "preexec_fn": in_a_folder_with_too_long_a_name}
    assert ended("print('never')", **options) == (ALONE, "", "")


def test_a_disk_without_room_for_a_temporary_file_is_no_reason_to_fail(folder: Path) -> None:
    assert not folder.exists()
    nowhere = "import tempfile\ndef none(): raise FileNotFoundError\ntempfile.gettempdir = none\n"
    done = subprocess.run([sys.executable, "-c", nowhere + CLIENT, "run"], check=False)
    assert done.returncode == ALONE


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("arguments", [[], ["tables"], ["sql", "run"], ["run", "--continuous"]])
def test_other_commands_and_long_ones_are_not_forked(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", CLIENT, *arguments], check=False)
    assert done.returncode == ALONE


def test_a_server_that_was_killed_is_not_waited_for_and_its_socket_is_removed(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    server.kill()
    server.wait()
    (left,) = folder.iterdir()
    assert ended("print('never')") == (ALONE, "", "")
    second = start_server()
    try:
        until(lambda: left not in folder.iterdir() and any(folder.iterdir()), 60)
        assert ended("print('second')") == (0, "second\n", "")
    finally:
        second.kill()
        second.communicate()


def test_it_ends_with_the_process_that_started_it_and_commands_go_on(folder: Path, server: subprocess.Popen[bytes]) -> None:
    process = begun("print('begun', flush=True); print('read', sys.stdin.readline())")
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(60) == 0
    assert not any(folder.iterdir())
    assert process.communicate("line\n", timeout=60)[0] == "read line\n\n"
    assert process.returncode == 0


@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, is_link: bool, tmp_path: Path) -> None:
    if is_link:
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    process = start_server()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith(b"commands start by themselves, more slowly")
    assert b"is not this user's own" in err
    assert ended("print('never')") == (ALONE, "", "")


def test_a_command_that_is_stopped_before_it_sends_its_streams_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    late = "import socket, time; send = socket.send_fds; socket.send_fds = lambda *sent: (time.sleep(3), send(*sent))"
    monkeypatch.setitem(globals(), "CLIENT", late + CLIENT)
    monkeypatch.setitem(globals(), "SERVER", SERVER.replace("fork_server.exit", "fork_server.READY_S = 2; fork_server.exit"))
    request.getfixturevalue("server")
    assert ended("print('begun')") == (0, "begun\n", "")


def test_a_temporary_folder_with_a_name_too_long_for_a_socket_is_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = folder.parent / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    process = start_server()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"commands start by themselves, more slowly: AF_UNIX path too long\n")


def test_the_server_takes_no_module_from_the_folder_it_is_started_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "game_events").mkdir()
    (folder.parent / "game_events" / "__init__.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("PYTHONPATH", str(forked_command.PACKAGE.parent))
    monkeypatch.chdir(folder.parent)
    with fork_server() as process:
        until(lambda: process.poll() is not None or (folder.exists() and any(folder.iterdir())), 120)
        assert process.poll() is None


def test_a_server_that_does_not_answer_is_not_waited_for_long(
    server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setitem(globals(), "CLIENT", CLIENT.replace("READY_S = 60", "READY_S = 1"))
        assert ended("print('never')") == (ALONE, "", "")
    server.send_signal(signal.SIGCONT)
    assert ended("print('after')") == (0, "after\n", "")
