"""What all workers of a decode job together report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from game_events.decoding.batch_decoder import TypeKey
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.lakehouse.data.staging import StagedFile
from game_events.pipeline.reporting.latency import Arrivals
from game_events.sources.core.source import Offsets, Split

#: Kind of a row of the workers' report that brings a schema which the driver does not know.
SCHEMA_KIND = "schema"


@dataclass(frozen=True)
class StageResult:
    """What all workers together report of a slice, or of rows that were stored before.

    Attributes:
        bronze, quarantine: files.
        types, unknown: pairs of schema id and index path that were decoded; that the plan does not know.
        reasons: why rows are in quarantine.
        arrivals: when the records were produced (only of records from Kafka).
        forgotten: worker by worker: rows of forgotten gamers, which are in no file.
        suppressed_records: of stored rows: (topic id, partition, offset, batch) of these.
        schemas: that files brought and the plan does not know.
        origins: of records from files, an archive's too: lane -> offset behind the last one.
        undecoded: rows of message types that are not selected; they are in bronze's files.
    """

    bronze: list[StagedFile]
    quarantine: list[StagedFile]
    types: set[TypeKey]
    unknown: set[TypeKey]
    reasons: Counter[str]
    arrivals: Arrivals = field(default_factory=Counter)
    forgotten: list[int] = field(default_factory=list)
    suppressed_records: list[tuple[str, int, int, int]] = field(default_factory=list)
    schemas: list[RegistrySchema] = field(default_factory=list)
    origins: Offsets = field(default_factory=dict)
    undecoded: Counter[TypeKey] = field(default_factory=Counter)

    @property
    def suppressed(self) -> int:
        """Rows of forgotten gamers."""
        return sum(self.forgotten)

    @classmethod
    def read(cls, rows: Iterable[tuple[str, str]]) -> StageResult:
        """From the rows of the workers' reports."""
        result = cls([], [], set(), set(), Counter())
        for kind, body in rows:
            if kind == "bronze":
                result.bronze.append(StagedFile.from_json(body))
            elif kind == "quarantine":
                result.quarantine.append(StagedFile.from_json(body))
            elif kind == SCHEMA_KIND:
                schema = json.loads(body)
                schema["references"] = tuple((name, text) for name, text in schema["references"])
                result.schemas.append(RegistrySchema(**schema))
            else:
                seen = json.loads(body)
                result.types.update((i, tuple(p)) for i, p in seen["types"])
                result.unknown.update((i, tuple(p)) for i, p in seen["unknown"])
                result.reasons.update(seen["reasons"])
                result.undecoded.update({(i, tuple(p)): n for i, p, n in seen["undecoded"]})
                result.arrivals.update(dict(seen.get("arrivals", ())))
                result.suppressed_records.extend(map(tuple, seen.get("suppressed_records", ())))
                result.forgotten.append(seen["suppressed"])
                for topic, topic_id, partition, end in seen.get("origins", ()):
                    lane = Split(topic, topic_id, partition)
                    result.origins[lane] = max(end, result.origins.get(lane, 0))
        return result
