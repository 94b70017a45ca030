"""Redecode: which rows it reads; the job itself needs Spark (integration/pipeline)."""

import pytest

from game_events.lakehouse.data.reading import row_count
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline import reprocessing as redecodes
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events_tests.support.altered_tables import without_statistics
from game_events_tests.support.model.world import World


@pytest.fixture
def world():
    world = World()
    world.records_come([("rummy", "a", n, 1) for n in (1, 3, 5)])
    world.work()
    yield world
    world.close()


class Staged(Exception):  # noqa: N818 - no error: the job has begun
    """The rows that the job was given."""


def test_rows_without_statistics_are_decoded_again(world, monkeypatch):
    def staged(_, handle):
        raise Staged(row_count(handle))

    monkeypatch.setattr(redecodes, "_stage_redecoded", staged)
    without_statistics(Lakehouse(world.folder).table(BRONZE))
    with pytest.raises(Staged, match="3"):
        redecode(world.pipeline(), RunReport())
