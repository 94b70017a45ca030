"""The shell that runs the documents' blocks does what a reader's would, and notices what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from game_events_tests.support.docs.shell import Shell, bare_environment
from game_events_tests.support.waiting import until

MakeShell = Callable[..., Shell]


@pytest.fixture
def make_shell(tmp_path: Path) -> Iterator[MakeShell]:
    made: list[Shell] = []

    def make(**options: bool) -> Shell:
        made.append(Shell(tmp_path, bare_environment(), **options))
        return made[-1]

    yield make
    for shell in made:
        shell.close()


def test_variables_and_the_folder_go_on_and_a_failing_command_ends_a_block(make_shell: MakeShell, tmp_path: Path):
    shell = make_shell()
    assert shell.run("export PLACE=here\nmkdir below\ncd below") == 0
    assert shell.run('echo "$PLACE $PWD"\nfalse\necho further') == 1
    assert shell.said == f"here {tmp_path}/below\n"


def test_commands_are_those_of_the_command_line_with_their_streams_and_exit_codes(make_shell: MakeShell):
    shell = make_shell()
    assert shell.run("game-events --help | grep -c quarantine; .venv/bin/game-events rum || echo code $?") == 0
    assert shell.said.startswith("1\n")
    assert "No such command 'rum'" in shell.said
    assert shell.said.endswith("code 2\n")
    assert shell.run("game-events tables --json > tables.json; python -c \"print(open('tables.json').read())\"") == 0
    assert '"tables": []' in shell.said
    assert shell.run("game-events stack down") == 1
    assert "mark the block" in shell.said


def test_what_a_block_leaves_running_ends_with_its_page(make_shell: MakeShell):
    shell = make_shell()
    assert shell.run("sleep 600 > /dev/null 2>&1 &\necho $!") == 0
    left = psutil.Process(int(shell.said))
    shell.close()
    until(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)


def test_a_dry_one_does_nothing_and_finds_wrong_commands_options_and_targets(make_shell: MakeShell, tmp_path: Path):
    shell = make_shell(dry=True)
    block = """
        make up && make nothing
        source .venv/bin/activate
        kubectl get pods | grep spark
        .venv/bin/game-events run --selct silver
        export GAME_EVENTS_MAX_GAMES=3
        touch here
    """
    assert shell.run(block) == 0
    assert [w.partition(":")[0] for w in shell.wrong] == ["make nothing", "game-events run --selct silver"]
    assert shell.environment["GAME_EVENTS_MAX_GAMES"] == "3"
    assert not (tmp_path / "here").exists()
    assert shell.run("if true") != 0
