"""Topics that come, grow and are made anew, beside rivals and crashes; bronze and quarantine are real, the rest is not.

Of the records every third does not decode. Partitions of different topics have the same numbers and offsets.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from game_events.lakehouse.data.columns import COORDINATES, QUARANTINE_COLUMNS, bronze_schema
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.table_checks import offsets_continuous
from game_events.pipeline.reporting.report import RunReport
from game_events.sources.source import Partition, SourceSnapshot
from game_events.workers.results import StagedRows
from game_events_tests.support.faults import handle_failpoints
from game_events_tests.support.pipelines import reading, stage_by_hand, without_spark
from game_events_tests.support.sources import ScriptedSource

IDS = [f"{letter * 21}A" for letter in "ABCDEFGH"]
POINTS = ("bronze_staged", "quarantine_committed", "bronze_committed")


class Killed(Exception):  # noqa: N818 - what SIGKILL would be
    """The run ended here."""


class Broker(ScriptedSource):
    """Partition -> its end; splits of topics that were deleted are gone."""

    def __init__(self):
        self.ends, self.ids = {}, iter(IDS)

    def make(self, topic, partitions):
        topic_id = next(self.ids)
        self.ends |= {Partition(topic, topic_id, number): 0 for number in range(partitions)}

    def snapshot(self, **_):
        return SourceSnapshot(dict.fromkeys(self.ends, 0), dict(self.ends))

    def batch_limit(self, _):
        return 7


class World:
    """A pipeline by a pattern, without Spark, Kafka and registry."""

    def __init__(self, root, monkeypatch, seed):
        self.root, self.broker, self.random = root, Broker(), random.Random(seed)  # noqa: S311 - not a secret
        self.meanwhile, self.dies_at = [], None
        stage_by_hand(monkeypatch, self.stage)
        handle_failpoints(monkeypatch, self.reach)
        self.broker.make("t.a", 2)

    def reach(self, point, *_):
        if point == self.dies_at:
            self.dies_at = None
            raise Killed

    def pipeline(self):
        return reading(without_spark(self.root, kafka_topic_pattern=r"t\..", on_data_loss="record_gap"), self.broker)

    def stage(self, pipeline, _handle, columns, part, batch, decided):
        if self.meanwhile:
            self.meanwhile.pop()()
        good, bad = [], []
        for split, end in part.end.items():
            for offset in range(part.start[split], end):
                row = dict(zip(COORDINATES, (split.topic_id, split.number, offset), strict=True)) | {"_batch": batch}
                if offset % 3:
                    good.append(row)
                elif offset not in decided.get((split.topic_id, split.number), ()):
                    bad.append(row | {"layer": "bronze"})
        files = []
        for table, schema, rows in (
            (pipeline.bronze, bronze_schema(columns), good),
            (pipeline.quarantine, QUARANTINE_COLUMNS, bad),
        ):
            files.append(staged(table, pa.Table.from_pylist(rows, schema=schema)))
        return StagedRows(*files, set(), set(), Counter())

    def run(self):
        report = RunReport()
        load_bronze(self.pipeline(), report)
        return report

    def grow(self):
        for split in self.broker.ends:
            self.broker.ends[split] += self.random.randint(0, 5)

    def join(self):
        self.broker.make(f"t.{len(self.broker.ends)}", self.random.randint(1, 3))
        self.grow()

    def rival(self):
        self.grow()
        self.run()

    def joining_rival(self):
        self.join()
        self.rival()

    def step(self):
        self.grow()
        kind = self.random.choice(["plain", "rival", "joining", "crash", "crash"])
        if kind == "joining" and len(self.broker.ends) > 10:
            kind = "rival"
        if kind == "crash":
            self.dies_at = self.random.choice(POINTS)
        elif kind != "plain":
            self.meanwhile.append(self.rival if kind == "rival" else self.joining_rival)
        try:
            self.run()
        except Killed:
            self.grow()

    def held(self):
        """Each row of bronze and quarantine."""
        found = Counter()
        for table in (self.pipeline().bronze, self.pipeline().quarantine):
            rows = read_arrow(table, table.open(), list(COORDINATES))
            found.update(zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True))
        return found


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.scenario) for seed in range(1, 6)))


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_between_topics_every_record_is_there_once(tmp_path, monkeypatch, seed):
    world = World(tmp_path / "lakehouse", monkeypatch, seed)
    world.meanwhile = [world.joining_rival]
    for _ in range(8):
        world.step()
    world.meanwhile, world.dies_at = [], None
    report = world.run()
    ends = world.broker.ends
    assert world.held() == Counter((split.topic_id, split.number, o) for split, end in ends.items() for o in range(end))
    assert sum(report.lag.values()) == 0
    continuous = offsets_continuous(world.pipeline())
    assert continuous.passed, continuous.summary
    # One of them is made anew: only it begins again.
    kept = {split: end for split, end in ends.items() if split.topic != "t.a"}
    before = world.held()
    world.broker.ends = kept
    world.broker.make("t.a", 1)
    world.broker.ends[min(split for split in world.broker.ends if split.topic == "t.a")] = 4
    report = world.run()
    assert {gap.topic for gap in report.gaps} == {"t.a"}
    assert sum((world.held() - before).values()) == 4
    assert not before - world.held()
