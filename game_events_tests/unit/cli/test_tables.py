"""`game-events tables`: what the tables' logs say, and the rows by message type."""

from __future__ import annotations

from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events_tests.support.tables import put


def test_rows_by_message_type_are_counted_over_all_files_with_those_that_have_none(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path))
    lakehouse = Lakehouse(str(tmp_path))
    put(lakehouse.table(BRONZE), {"_message_type": ["a.Start", "a.End", None], "_batch": [1, 1, 1]})
    put(lakehouse.table(BRONZE), {"_message_type": ["a.End", "a.End"], "_batch": [2, 2]})
    put(lakehouse.silver("rummy"), {"level": [1]})  # of an earlier release
    types = {entry["table"]: entry["types"] for entry in cli("tables", "--types", "--json").result["tables"]}
    assert types == {"bronze_events": {"a.End": 3, "a.Start": 1, "": 1}, "silver_rummy_events": {}}
    assert "a.Start" in cli("tables", "--types").out
    assert all("types" not in entry for entry in cli("tables", "--json").result["tables"])
