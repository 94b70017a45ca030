"""A dry run says what maintenance would do: a file that goes, or that one step writes again, is counted by no other step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.lakehouse import laying_out
from game_events.lakehouse import maintenance as lakehouse_maintenance
from game_events.lakehouse.commits.versions import OldVersions
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events_tests.support.edge_values import earlier_release
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put
from game_events_tests.unit.pipeline.retention.world import World, events

COUNTED = ("joined", "into", "renewed", "outdated", "laid_out", "spread", "expired", "expired_games", "raw_values", "replaced")


def counts(done: Mapping[str, TableMaintenance]) -> dict[str, dict[str, object]]:
    """Table -> what was done of each kind."""
    return {name: {kind: value for kind, value in asdict(one).items() if kind in COUNTED} for name, one in done.items()}


@pytest.mark.parametrize(
    "ages",
    [
        [[100, 40, 1], [90, 80]],
        [[100, 40, 1], [90, 80], [3, 2]],
        [[90], [80], [70]],
        [[100, 2], [90, 3], [40, 1]],
        [[19, 3], [2], [1]],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "days", [{"bronze": 60, "raw": 20}, {"raw": 20}, {"bronze": 60, "silver": 30}, {"bronze": 30, "raw:uno": 50}], ids=str
)
def test_rows_and_values_by_age_and_files_to_merge(tmp_path: Path, days: dict[str, float], ages: list[list[float]]) -> None:
    world = World(tmp_path, days)
    for some in ages:
        world.load(some)
    planned = counts(world.maintained(dry_run=True))
    done = counts(world.maintained())
    assert planned == done
    assert any(any(one.values()) for one in done.values())


def maintained(root: Path, *, dry_run: bool, **settings: object) -> dict[str, dict[str, object]]:
    report = RunReport()
    maintain(without_spark(root, **settings), report, layout=True, dry_run=dry_run)
    assert report.success, report.maintenance
    return counts(report.maintenance)


def test_files_without_the_statistics_that_two_reasons_ask_for_are_counted_once(tmp_path: Path) -> None:
    columns = {f"c{n:02}": pa.array([n, n + 1]) for n in range(40)} | {"f": pa.array([0.5, float("nan")])}
    with earlier_release():
        put(without_spark(tmp_path).lakehouse.silver("uno"), columns, info={"bronze_batch": "1"})
    settings = {"statistics_columns": "c38"}
    planned = maintained(tmp_path, dry_run=True, **settings)
    assert planned == maintained(tmp_path, dry_run=False, **settings)
    assert planned["silver_uno_events"]["renewed"] == 1


def test_files_that_the_layout_writes_again_are_not_merged_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (laying_out, lakehouse_maintenance):
        monkeypatch.setattr(module, "SPREAD_BYTES", 1_000_000)
    table = without_spark(tmp_path).lakehouse.silver("uno")
    for batch in (1, 2):
        put(table, events([3, 2, 1], batch), info={"bronze_batch": "1"})
    settings = {"layout": {"silver": "day"}}
    planned = maintained(tmp_path, dry_run=True, **settings)
    assert planned == maintained(tmp_path, dry_run=False, **settings)
    assert planned["silver_uno_events"]["laid_out"] == 2


class Killed(BaseException):
    """The process ends here."""


def test_replaced_files_that_a_killed_maintenance_has_deleted_are_not_counted_again(tmp_path: Path) -> None:
    settings = {"every_version_h": 1e-6, "replaced_files_h": 1e-6, "derived_replaced_files_h": 1e-6}
    pipeline = without_spark(tmp_path, **settings)
    table = pipeline.lakehouse.gold("uno")
    for batch in range(4):
        put(table, {"n": [batch]}, info={"bronze_batch": str(batch)}, replace=batch > 0)
    DeltaTable(table.uri).create_checkpoint()
    time.sleep(0.02)
    deleted: list[str] = []

    def die(point: str, _: object) -> None:
        if point == "file_deleted":
            deleted.append(point)
            if len(deleted) == 2:
                raise Killed

    with at_failpoints(die), pytest.raises(Killed):
        OldVersions(table).thin_out(table.open())
    planned = maintained(tmp_path, dry_run=True, **settings)
    assert planned == maintained(tmp_path, dry_run=False, **settings)
    assert planned[table.name]["replaced"] == 1
