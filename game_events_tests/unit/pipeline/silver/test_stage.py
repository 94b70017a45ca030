"""How silver's job fails."""

from types import SimpleNamespace

import pytest

from game_events.errors import ExtensionError, UserCodeError
from game_events.pipeline.silver.stage import stage_games
from game_events.spark.failures import WorkerCrashError
from game_events.workers.fanout import Routing
from game_events.workers.results import FanOutResult


class FailingStaging:
    """A pass over rows of some games; `guilty`: the transformation fails over rows of these."""

    batches, files = "batches 1 to 2 of bronze_events", SimpleNamespace(files=["a file"])

    def __init__(self, *guilty, first=UserCodeError, starts=None):
        self.guilty, self.first, self.starts, self.routing = guilty, first, starts, Routing()
        names = SimpleNamespace(entities="games")
        settings = SimpleNamespace(names=names)
        self.source = SimpleNamespace(pipeline=SimpleNamespace(on_progress=lambda _: None, settings=settings))

    def stage(self, part=None):
        if part is None:
            raise self.first("the whole job")
        if set(part) & set(self.guilty):
            raise UserCodeError("my_function failed")
        return FanOutResult(files={game: [] for game in part})

    def names(self):
        rows = [{"name": name, "rows": 1} for name in ("chess", "rummy", "uno")]
        return SimpleNamespace(limit=lambda _: SimpleNamespace(collect=lambda: rows))


@pytest.mark.parametrize("first", [UserCodeError, WorkerCrashError])
@pytest.mark.parametrize("starts", [None, {}], ids=["pass over all games", "failed games again"])
def test_a_game_whose_rows_a_transformation_cannot_take_fails_alone(first, starts):
    result = stage_games(FailingStaging("uno", first=first, starts=starts))
    assert result.failed == {"uno": "my_function failed"}
    assert set(result.files) == {"chess", "rummy"}


def test_a_transformation_that_fails_for_every_game_fails_silver_as_a_whole_before_its_first_commit():
    with pytest.raises(ExtensionError, match="the whole job"):
        stage_games(FailingStaging("chess", "rummy", "uno"))


def test_games_that_fail_again_after_a_runs_first_commits_do_not_keep_it_from_noting_these():
    result = stage_games(FailingStaging("chess", "rummy", "uno", starts={}))
    assert result.failed == dict.fromkeys(("chess", "rummy", "uno"), "my_function failed")
