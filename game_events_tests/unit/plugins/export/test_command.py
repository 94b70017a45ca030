"""What `game-events export size` computes."""

from game_events.plugins.export.command import size


def test_tasks_and_cores_follow_from_littles_law():
    found = size(rows_per_s=1_687, latency_ms=95, rows_per_call=10, calls_per_task=1)
    assert (found.calls_per_s, found.calls_at_once, found.tasks, found.cores) == (168.7, 17, 17, 1)
    assert size(1_687, 95, 10, 8).tasks == 3
    assert size(100_000, 95, 100, 8).cores > 1
    assert size(1, 1, 100, 8).tasks == 1
