"""Bronze's part that only files as the source have: the worker that opens them, and where the topics of an archive stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.batch_decoder import DecodePlan
from game_events.lakehouse.data.staging import report
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze.worker import BronzeTask
from game_events.pipeline.bronze.worker_result import SCHEMA_KIND
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.source import Offsets
from game_events.sources.files.reader import FileReader, FileReading

#: 16 bytes as librdkafka writes them.
_ID = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]")


@dataclass(frozen=True)
class FileBronzeTask:
    """Opens files and hands their records to bronze's own task, in one worker; picklable."""

    reading: FileReading
    bronze: BronzeTask

    @property
    def plan(self) -> DecodePlan:
        """How it decodes, and where fields land."""
        return self.bronze.plan

    @property
    def tables(self) -> tuple[Table, Table | None]:
        """Where it writes."""
        return self.bronze.tables

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: consumes rows of files (`reading.FILES_SCHEMA`), yields the report (`REPORT_SCHEMA`)."""
        reader = FileReader(self.reading)
        staged = self.bronze.stage(reader.batches(batches))
        unknown = {i for i in reader.schemas if i not in self.plan.schemas and (i, ()) not in self.plan.rejected}
        yield report(iter([*staged, *((SCHEMA_KIND, json.dumps(asdict(reader.schemas[i]))) for i in unknown)]))


def ends_of_origins(origins: Offsets) -> Offsets:
    """Lane -> end of what an archive has of each topic that its records come from."""
    # What has no topic's id was never read from one.
    return {lane: end for lane, end in origins.items() if _ID.fullmatch(lane.topic_id)}


def behind_origins(bronze: DeltaTable, origins: Offsets) -> Offsets:
    """Lane -> position for these topics: a run that reads them goes on behind what the archive and bronze have."""
    lanes = ends_of_origins(origins)
    reached = next_offsets(bronze, lanes)
    return {lane: max(end, reached.get(lane, 0)) for lane, end in lanes.items()}
