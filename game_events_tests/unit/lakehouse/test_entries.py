"""What is read of a local table's log, beside others who shorten it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.entries import read_domains, read_state
from game_events.lakehouse.open_table import entry_of, has_entry
from game_events.lakehouse.tables import Lakehouse, Table, paths
from game_events_tests.support.tables import forget_older, plan


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Lakehouse(str(tmp_path)).silver("uno")
    for n in range(1, 5):
        commit(plan(table, [n], n - 1 or None, n))
    return table


def test_an_entry_that_goes_while_the_log_is_read_is_not_missed_as_a_checkpoint_has_what_it_said(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = DeltaTable(table.uri).version()
    read_bytes = Path.read_bytes
    shortened: list[int] = []

    def after_others(path: Path) -> bytes:
        if not shortened:
            shortened.append(version)
            DeltaTable(table.uri).create_checkpoint()
            forget_older(table)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", after_others)
    assert read_state(table.uri, version).files.keys() == set(paths(table.open()))
    assert shortened


@pytest.mark.parametrize("read", [read_state, lambda uri, version: read_domains(uri, version, {"delta.rowTracking"})])
def test_an_entry_that_nothing_replaces_is_named(table: Table, read) -> None:
    Path(table.uri, "_delta_log", f"{1:020}.json").unlink()
    with pytest.raises(DataError, match=r"lacks entries.*0{19}1\.json"):
        read(table.uri, 3)


@pytest.mark.parametrize("place", ["", "_delta_log"])
def test_a_file_in_the_place_of_a_table_has_no_entries(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "silver_uno_events"
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("something else")
    assert entry_of(str(folder), None, 0) is None
    assert not has_entry(str(folder), None, 0)
