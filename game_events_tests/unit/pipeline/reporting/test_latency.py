"""How long records were on their way: counted in tenths of a second, kept in buckets."""

from collections import Counter

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.tables import Table
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import Histogram
from game_events.pipeline.runs.loop import LoopReport
from game_events.workers.results import count_arrivals

NOW = 1_700_000_000


def times(*seconds):
    return pa.array([int(s * 1_000_000) for s in seconds], pa.timestamp("us", tz="UTC"))


def test_records_are_counted_by_the_tenth_of_a_second_old_ones_by_the_minute_and_the_hour():
    found = count_arrivals(times(NOW - 1.05, NOW - 1.01, NOW - 0.5), NOW)
    assert found == Counter({NOW * 10 - 11: 2, NOW * 10 - 5: 1})
    assert sorted(found.values()) == [1, 2]
    week = [NOW - second for second in range(0, 7 * 86_400, 7)]
    assert len(count_arrivals(times(*week), NOW)) < 6000 + 24 * 60 + 7 * 24
    assert sum(count_arrivals(times(*week), NOW).values()) == len(week)
    assert count_arrivals(times(), NOW) == Counter()


@pytest.mark.parametrize("odd", [-0.001, -1e9, NOW + 1e6])
def test_a_timestamp_before_1970_or_in_the_future_is_counted_and_breaks_nothing(odd):
    histogram = Histogram.of(count_arrivals(times(odd), NOW), NOW)
    assert histogram.total == 1
    assert histogram.percentile(0.5) >= 0


def test_percentiles_are_right_to_a_tenth_and_merged_histograms_are_those_of_all_rows():
    seconds = [0.2 + 0.01 * n for n in range(1000)]
    whole, halves = Histogram(), [Histogram(), Histogram()]
    for n, duration in enumerate(seconds):
        whole.add(duration)
        halves[n % 2].add(duration)
    assert whole.percentile(0.5) == pytest.approx(5.2, rel=0.11)
    assert whole.percentile(0.95) == pytest.approx(9.7, rel=0.11)
    assert whole.percentile(1) == whole.longest_s == seconds[-1]
    assert ((halves[0] + halves[1]).counts == whole.counts).all()
    assert sum(n for _, n in whole.buckets()) == whole.total == 1000
    assert Histogram().percentile(0.5) is None


def test_rows_wait_for_each_layer_until_it_has_them():
    report = RunReport()
    report.arrived(Counter({1: 5}))
    report.visible("silver")
    assert report.latency["silver"].total == 5
    assert "gold" not in report.latency
    later = RunReport(waiting=report.waiting)
    later.arrived(Counter({2: 3}))
    later.visible("silver")
    later.visible("gold")
    both = report.merge(later)
    assert {layer: t.total for layer, t in both.latency.items()} == {"bronze": 8, "silver": 8, "gold": 8}
    assert both.waiting == {"unified": Counter({1: 5, 2: 3})}


def of(rows, version, **more):
    report = RunReport(**more)
    table = Table("silver_uno", "/x")
    report.add_landed("silver", table, Landed(table.name, version, "id", rows, 1, rows, 1), pa.schema([]), version, "uno")
    return report


def test_a_long_run_keeps_a_bounded_list_of_batches():
    report = LoopReport()
    for batch in range(1, 3001):
        report.add_cycle(of(1, batch, batches=[batch]), 0.1)
    assert report.cycles == 3000
    assert len(report.total.batches) == 1000
    assert report.total.batches[-1] == 3000
    assert report.to_dict()["continuous"]["cycles"] == 3000
