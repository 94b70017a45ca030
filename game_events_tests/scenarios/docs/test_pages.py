"""Every block of code of the README and of docs/ does what its page says."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.docs.pages import PAGES, blocks
from game_events_tests.support.docs.world import World

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

RUN = [page for page in PAGES if any(not block.mark for block in blocks(page))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, stack: StackState, spark: SparkSession) -> World:  # noqa: ARG001 - commands find it
    made = World(tmp_path_factory.mktemp("docs"), stack)
    made.fill()
    return made


@pytest.fixture
def closing() -> Iterator[list]:
    shells: list = []
    yield shells
    for shell in shells:
        shell.close()


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_a_pages_blocks_run_as_they_are_written_and_print_what_it_shows(world: World, closing: list, page: Path) -> None:
    reader = world.reader(page.name)
    closing.append(reader.shell)
    wrong = []
    for block in blocks(page):
        if not block.mark:
            try:
                reader.do(block)
            except AssertionError as error:
                wrong.append(str(error))
            except Exception:  # noqa: BLE001 - all that is wrong with a page is said at once
                wrong.append(f"{block}:\n{traceback.format_exc(limit=-3)}")
    assert not wrong, "\n\n".join(wrong)
