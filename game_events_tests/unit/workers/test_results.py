"""Counts of message types are bounded: records of topics without a schema choose their names."""

from collections import Counter

from game_events.workers import results
from game_events.workers.results import OTHER_TYPES, StagedRows


def test_rows_of_more_types_than_are_counted_are_counted_together(monkeypatch):
    monkeypatch.setattr(results, "MOST_TYPES", 3)
    parts = [StagedRows(by_type=Counter(names)) for names in ("aaab", "bccd", "aeed")]
    total = StagedRows.sum(parts).by_type
    assert total.total() == 12, "none is lost"
    assert len(total) == 3
    assert total[OTHER_TYPES]
    assert StagedRows.sum(parts[:1]).by_type == Counter("aaab")
