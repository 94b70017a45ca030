"""A crash at every named point loses no row and doubles none, whatever has happened to the topic by the next run."""

from __future__ import annotations

import re
from pathlib import Path

from game_events_tests.integration.plugins.export.test_export_crashes import POINTS as EXPORT_POINTS
from game_events_tests.integration.plugins.files.test_old_lakehouse import POINTS as MIGRATION_POINTS
from game_events_tests.scenarios.guarantees.test_crashes import POINTS
from game_events_tests.scenarios.guarantees.test_crashes_of_erasures import POINTS as ERASURE_POINTS
from game_events_tests.unit.pipeline.retention.test_crashes import POINTS as RETENTION_POINTS
from game_events_tests.unit.pipeline.test_crashes import POINTS as MAINTENANCE_POINTS

#: Points of other work than a plain run's: test_crashes_of_other_work.py, test_archive.py, test_replay.py, test_redecode.py,
#: test_rejections.py, test_full_refresh.py, test_type_tables.py, test_unity.py and Iceberg's tests crash at them.
OTHER_POINTS = (
    "replay_staged",
    "replay_committed",
    "replay_noted",
    "redecode_staged",
    "redecode_committed",
    "rejections_decided",
    "reset_staged",
    "reset_committed",
    "reset_finished",
    "silver_replanned",
    "silver_type_committed",
    "files_taken_in",
    "archive_staged",
    "table_registered",
    "iceberg_staged",
    "iceberg_committed",
)
ROOT = Path(__file__).parents[3]
#: As the code names them.
FAILPOINTS = {
    name
    for file in (ROOT / "game_events").rglob("*.py")
    for name in re.findall(r'\b(?:reach\(|commit_games\(\s*\w+,\s*)"(\w+)"', file.read_text("utf-8"))
}


def test_every_failpoint_is_tried() -> None:
    of_maintenance = (*MAINTENANCE_POINTS, *RETENTION_POINTS)
    points = (*POINTS, *OTHER_POINTS, *ERASURE_POINTS, *of_maintenance, *EXPORT_POINTS, *MIGRATION_POINTS)
    tried = {point.partition("@")[0].partition(":")[0] for point in points}
    assert tried == FAILPOINTS


def test_the_guarantees_have_a_paragraph_for_every_failpoint() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8").partition("## A crash at each point")[2].partition("\n## ")[0]
    assert set(re.findall(r"\n\*\*`(\w+)`\*\*", text)) == FAILPOINTS
