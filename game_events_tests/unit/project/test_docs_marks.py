"""What the documents name is there, and no block escapes its test without a reason."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import settings_class
from game_events.config.sources.several import is_of_source
from game_events_tests.support.docs.pages import NOT_RUN, PAGES, ROOT, RUN_BY, Block, blocks, inline_code
from game_events_tests.support.docs.printed import missing
from game_events_tests.support.docs.shell import Shell, bare_environment
from game_events_tests.support.docs.usage import wrong_synopsis, wrong_usage
from game_events_tests.support.docs.world import OTHER_VARIABLES, Reader

BLOCKS = [block for page in PAGES for block in blocks(page)]
#: Of the blocks that are more than text, so many in a hundred may be marked as not run.
NOT_RUN_PERCENT = 40
_READS = {"json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text)), "python": lambda text: ast.parse(text).body}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_every_block_says_what_it_is():
    bare = [str(block) for block in BLOCKS if not block.language]
    assert not bare, f"blocks without a language (text: what the block above prints; see docs/contributing.md): {bare}"


def test_every_block_that_is_not_run_says_why():
    for block in BLOCKS:
        if block.mark == NOT_RUN:
            assert len(block.reason.split()) >= 2, f"{block}: that is no reason: {block.reason!r}"


def test_most_blocks_are_run():
    code = [block for block in BLOCKS if block.language != "text"]
    marked = [str(block) for block in code if block.mark == NOT_RUN]
    assert 100 * len(marked) <= NOT_RUN_PERCENT * len(code), f"too many blocks are not run: {marked}"


def test_the_test_that_is_said_to_run_a_block_knows_its_page():
    for block in BLOCKS:
        if block.mark == RUN_BY:
            test = ROOT / block.reason
            assert test.is_file(), f"{block}: there is no {block.reason}"
            assert block.page in test.read_text(), f"{block}: {block.reason} says nothing of {block.page}"


@each_page
def test_text_that_is_not_marked_is_what_a_block_above_prints(page: Path):
    prints = False
    for block in blocks(page):
        if not block.mark:
            assert prints or block.language != "text", f"{block}: no block above is run; mark it: <!-- not run: why -->"
            prints = prints or block.language in ("sh", "python", "sql")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in _READS], ids=str)
def test_data_and_code_can_be_read(block: Block):
    assert _READS[block.language](block.text), f"{block}: there is nothing in it"


@each_page
def test_commands_in_the_text_exist_with_their_options(page: Path):
    wrong = [wrong_synopsis(code.removeprefix(".venv/bin/")) for code in inline_code(page) if _is_command(code)]
    assert not any(wrong), wrong


def _is_command(code: str) -> bool:
    return code.removeprefix(".venv/bin/").startswith("game-events ")


@each_page
def test_make_targets_in_the_text_exist(page: Path):
    makefile = (ROOT / "Makefile").read_text()
    for code in inline_code(page):
        if target := re.match(r"make ([a-z-]+)", code):
            assert f"\n{target[1]}:" in makefile, code


@each_page
def test_files_and_modules_in_the_text_exist(page: Path):
    for code in inline_code(page):
        if re.fullmatch(r"[\w./]+/[\w.]+\.(py|xml|toml)", code):
            assert any((ROOT / folder / code).is_file() for folder in ("", "game_events", "game_events_tests")), code
        if module := re.search(r"python -m ([\w.]+)", code):
            assert importlib.util.find_spec(module[1]), code


@each_page
def test_settings_in_the_text_exist(page: Path):
    named = {name for name in re.findall(rf"{ENV_PREFIX}([A-Z_]*[A-Z])\b", page.read_text()) if not is_of_source(name.lower())}
    assert named <= {name.upper() for name in settings_class().model_fields} | OTHER_VARIABLES


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark == NOT_RUN and b.language == "sh"], ids=str)
def test_commands_and_settings_of_blocks_that_are_not_run_exist(block: Block, tmp_path: Path):
    assert wrong_in(block, tmp_path) == ""


def wrong_in(block: Block, folder: Path) -> str:
    """What is wrong with a block of shell that is not run."""
    with closing(Shell(folder, bare_environment(), dry=True)) as shell:
        try:
            Reader(shell).look_at(block)
        except AssertionError as error:
            return str(error)
    return ""


def test_what_is_wrong_with_a_block_that_is_not_run_is_noticed(tmp_path: Path):
    wrong = {"game-events run --selct silver": "--selct", "if true": "bash", "export GAME_EVENTS_GAMS=uno": "GAMS"}
    for text, said in wrong.items():
        assert said in wrong_in(Block("page.md", 1, "sh", text, NOT_RUN, "for this test"), tmp_path)


def test_wrong_usage_is_noticed():
    assert wrong_usage(["run", "--select", "silver"]) == ""
    assert "--selct" in wrong_usage(["run", "--selct", "silver"])
    assert "rum" in wrong_usage(["rum"])
    assert wrong_usage(["schema", "diff", "--nothing"])
    assert wrong_usage(["produce", "--records", "many"])
    assert wrong_synopsis("game-events quarantine list|replay [--reason R]") == ""
    assert "rplay" in wrong_synopsis("game-events quarantine list|rplay")
    assert "--raison" in wrong_synopsis("game-events quarantine replay --raison R")


def test_output_is_compared_by_its_words():
    printed = "│ table      │ rows │\n├────┼───┤\n│ silver_uno │ 1,204 │\nrun 5f3e2a91 by bob@here: done\n"
    assert missing("table rows\n...\nsilver_uno 17\nrun 00ff by ana@etl: done", printed) == ""
    assert missing("┃ table ┃ ...", printed) == ""
    assert missing("silver_chess 17", printed) == "silver_chess 17"
    assert missing("done\n...\ntable", printed) == "table"
    assert missing("silver_uno\nrun", printed) == "silver_uno\nrun"
