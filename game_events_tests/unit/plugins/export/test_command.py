"""What `game-events export size` computes."""

import pytest


@pytest.mark.parametrize(
    ("rows_per_s", "latency_ms", "rows_per_call", "calls_per_task", "needs"),
    [
        (1_687, 95, 10, 1, {"calls_per_s": 168.7, "calls_at_once": 17, "tasks": 17, "cores": 1}),
        (1_687, 95, 10, 8, {"tasks": 3}),
        (100_000, 95, 100, 8, {"cores": 7}),
        (1, 1, 100, 8, {"tasks": 1}),
    ],
)
def test_tasks_and_cores_follow_from_littles_law(cli, rows_per_s, latency_ms, rows_per_call, calls_per_task, needs):
    rate = ("--rows-per-s", str(rows_per_s), "--latency-ms", str(latency_ms))
    calls = ("--rows-per-call", str(rows_per_call), "--calls-per-task", str(calls_per_task))
    assert needs.items() <= cli("export", "size", *rate, *calls, "--json").result.items()
