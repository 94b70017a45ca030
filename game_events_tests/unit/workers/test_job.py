"""Results of workers, as the driver gets them through Arrow."""

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from game_events.workers.job import WorkerJob
from game_events_tests.support.worker_jobs import run


@dataclass(frozen=True)
class Found:
    """Result of the job."""

    texts: list[str]
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
