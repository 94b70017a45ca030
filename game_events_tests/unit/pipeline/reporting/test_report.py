"""The report of a run: its parts are added one by one, at a cost that follows their number."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.tables import Table
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult, LayerResult
from game_events.rules import Rule
from game_events.workers.results import RuleCounts

RULES = [Rule(name="level", sql="level > 0")]


class CountedName(str):
    """A table's name that counts how often it is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def add_game(report: RunReport, number: int) -> None:
    game = f"g{number}"
    table = Table(CountedName(f"silver_{game}_events"), f"/x/{game}")
    report.add_landed("silver", table, Landed(table.name, 1, "id", number, 1, number, 10), pa.schema([]), 1, game)
    report.add_rules("silver", game, RULES, RuleCounts(rows=number, violated=Counter(level=1)))
    report.add_failed("gold", Table(f"gold_{game}_player_agg", f"/x/gold/{game}"), "no space", game)
    report.warn(f"notice {number % 3}")


def report_of(games: int) -> RunReport:
    report = RunReport()
    for number in range(games):
        add_game(report, number)
    assert len(report.tables) == 2 * games
    return report


def lookups_for(games: int) -> int:
    before = CountedName.lookups
    report_of(games)
    return CountedName.lookups - before


def test_eight_times_as_many_games_cost_not_much_more_than_eight_times_the_work():
    assert lookups_for(400) < 8 * 2 * lookups_for(50)


def test_a_report_that_is_read_after_each_part_equals_one_that_is_read_at_its_end():
    read_often = RunReport()
    for number in range(20):
        add_game(read_often, number)
        assert read_often.to_dict()["success"] is False
    assert read_often.to_dict() == report_of(20).to_dict()
    assert read_often.rows("silver") == sum(range(20))
    assert read_often.notices == ["notice 0", "notice 1", "notice 2"]


def test_a_field_keeps_its_value_when_parts_without_that_field_are_added():
    report = RunReport(lag={"a": 1})  # type: ignore[dict-item]
    report.add(LayerResult(seconds={"gold": 1.0}))
    report.add(BronzeResult(replayed=2))
    report.add(BronzeResult(replayed=3))
    assert (report.lag, report.replayed, report.seconds) == ({"a": 1}, 5, {"gold": 1.0})


def test_a_name_that_is_no_field_is_an_error():
    with pytest.raises(AttributeError, match="RunReport has no attribute replaid"):
        RunReport().replaid  # noqa: B018
