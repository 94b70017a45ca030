"""A random history of a lakehouse: after each step Iceberg's tables have the rows of Delta's, with and without predicates."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events_tests.support.iceberg import caught_up, metadata_files
from game_events_tests.support.worlds.iceberg_history import History

SEEDS = (1, 2)
STEPS = 24


@pytest.mark.parametrize("seed", SEEDS)
def test_iceberg_has_deltas_rows_after_each_step_of_a_random_history(tmp_path, seed):
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        step = history.step()
        if history.random.random() < 0.3:
            history.pipeline = history.new_process()
        result = caught_up(history.pipeline)
        assert not result.failed, step
        history.compare(step)
    assert {Path(name).suffix for name in metadata_files(history.silver)} == {".avro", ".json"}
