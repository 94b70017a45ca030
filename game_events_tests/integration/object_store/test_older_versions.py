"""Older versions of tables in an object store are thinned out as on a disk, and their log is read several parts at a time."""

from __future__ import annotations

from dataclasses import replace

from game_events.config.settings import Settings
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.versions import OldVersions, files_there
from game_events.lakehouse.data.reading import BATCH_INFO, read_arrow
from game_events.lakehouse.maintenance import orphans
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import plan, staged_numbers


def test_files_that_no_version_needs_go_and_others_stay(tables_only: Settings) -> None:
    table = replace(Lakehouse.of(tables_only).table("silver_uno_events"), retention=Retention(1e-9, 1e-9, 1e-9))
    for n in range(1, 6):
        commit(plan(table, [n], n - 1 or None, n, info={BATCH_INFO: "1"}, replace=n > 1))
    table.open().create_checkpoint()
    (staged,) = staged_numbers(table, [7])
    versions = OldVersions(table)
    todo = versions.plan(table.open())
    assert len(todo.files) == files_there(table, todo.files) == 4
    assert set(orphans(table, -60, versions)) == {staged.path}
    assert versions.thin_out(table.open()) == 4
    assert files_there(table, todo.files) == 0
    assert read_arrow(table, table.open())["n"].to_pylist() == [5]
    assert set(orphans(table, -60, OldVersions(table))) == {staged.path}
