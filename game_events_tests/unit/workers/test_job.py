"""Results of workers, as the driver gets them as Spark brings them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa

from game_events.decoding.frame import RegistrySchema
from game_events.lakehouse.data.staging import StagedFile
from game_events.sources.source import Partition
from game_events.workers.job import WorkerJob
from game_events.workers.results import FanOutResult, StagedRows
from game_events_tests.support.worker_jobs import run


@dataclass(frozen=True)
class Found:
    """Result of the job."""

    texts: list[str | None]
    rows: pa.Table
    none: pa.Table = field(default_factory=pa.schema([("n", pa.int32())]).empty_table)


@dataclass(frozen=True)
class Keep(WorkerJob[Found]):
    """Returns its rows."""

    result: ClassVar[type] = Found

    def stage(self, batches):
        rows = pa.Table.from_batches(batches)
        return Found(rows.column("kind").to_pylist(), rows)


def test_a_result_keeps_the_order_of_its_rows_and_the_types_of_its_tables():
    rows = pa.table({"kind": ["bronze", "seen", None], "n": pa.array([2, None, 1], pa.int32())})
    found = run(Keep(), rows.to_batches())
    assert found.texts == ["bronze", "seen", None]
    assert found.rows.equals(rows)
    assert found.none.num_rows == 0
    assert found.none.schema == pa.schema([("n", pa.int32())])


def test_a_result_keeps_counts_by_any_key_and_what_else_workers_report():
    file = StagedFile("t", "a.parquet", 1, 2, "{}")
    staged = StagedRows(
        bronze=[file],
        types={(7, (0, 1)), ("0f-guid", ())},
        arrivals=Counter({123: 4}),
        suppressed_records=[("id", 0, 5, 1)],
        schemas=[RegistrySchema(7, "AVRO", "text", (("a", "b"),))],
        origins={Partition("topic", "id", 3): np.int64(9)},
        undecoded=Counter({(7, ()): 2}),
        silver=FanOutResult(refused={"invalid": Counter({"": 3})}, columns={"g": frozenset({"c"})}, partials=[rows_of(1)]),
    )
    job = KeepStaged(staged)
    assert run(job, []) == staged


def rows_of(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int32())})


@dataclass(frozen=True)
class KeepStaged(WorkerJob[StagedRows]):
    """Returns what it was given."""

    result: ClassVar[type] = StagedRows
    staged: StagedRows

    def stage(self, batches):  # noqa: ARG002
        return self.staged
