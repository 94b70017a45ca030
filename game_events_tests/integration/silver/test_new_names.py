"""New names become games, whatever other rows bronze's files have."""

import pytest

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.tables import Layer
from game_events.pipeline.silver.admission import new_games
from game_events_tests.support.tables import put


@pytest.fixture
def names_of_new_games(make_pipeline, tmp_path):
    """Of rows in one file, as after a compaction, of which silver has those of batch 1."""

    def names_of(column, names, **options):
        pipeline = make_pipeline(load_settings(lakehouse=str(tmp_path), entity_column=column))
        rows = {column: names, "gamer_id": ["ann"] * len(names), "_batch": [1, 1, 2, 2][: len(names)]}
        key = BronzeIdentity.of(put(pipeline.bronze, rows, {Txn.BATCH: 2})).key
        pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 1, {"uno": 1}))
        return new_games(pipeline, **options)

    return names_of


@pytest.mark.parametrize(("options", "names"), [({}, ["go"]), ({"above": 0}, ["chess", "go"])], ids=str)
def test_new_games_are_names_with_rows_of_later_batches_whatever_else_their_file_has(names_of_new_games, options, names):
    assert names_of_new_games("game_name", ["chess", "uno", "go", "no/game"], **options) == names


def test_numbers_are_no_new_games(names_of_new_games):
    assert names_of_new_games("game_id", [7, 7, 9]) == []
