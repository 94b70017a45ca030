"""Pending work of the next run, from Delta logs, one column of bronze and the source's offsets; without Spark."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import files_with
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.layers import Layer
from game_events.pipeline.bronze.offset_plan import OffsetPlan, starting_point
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.routing import Routing
from game_events.sources.core.source import Offsets


@dataclass(frozen=True)
class Backlog:
    """Pending work.

    `records`: split -> number of records to read, if any. `rows`: rows of bronze that are not in silver.
    """

    records: Offsets = field(default_factory=dict)
    games: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0

    def __str__(self) -> str:
        """One line of text."""
        parts = ", ".join(f"{p} {n:,}" for p, n in sorted(self.records.items()))
        read = f"{sum(self.records.values()):,} records to read" + (f" ({parts})" if parts else "")
        behind = "; ".join(f"{layer}: {len(games)} games behind" for layer, games in self.games.items())
        return f"{read}; {behind}; {self.rows:,} rows of bronze wait for silver"


def backlog(pipeline: Pipeline) -> Backlog:
    """Pending work of the next run; nothing is written.

    Raises:
        ConfigurationError, TransientError: the broker is unavailable.
        DataError: the run would stop, because unread records were deleted.
    """
    now = pipeline.source_snapshot()
    bronze = pipeline.bronze.open()
    if bronze is None:
        start = starting_point(pipeline, now)
        waiting = {p: (end - start[p]) // now.unit for p, end in now.latest.items() if end > start[p]}
        return Backlog(waiting, {Layer.SILVER: [], Layer.GOLD: [], Layer.UNIFIED: []})
    part = OffsetPlan.of(pipeline, bronze, now, {}, sum(now.latest.values()) + 1).micro_batch
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    names = games_waiting(pipeline)
    silver = names.keys() | state.failed_in(Layer.SILVER)
    gold = silver | {g for g, batch in state.games.items() if batch > state.floor(Layer.GOLD)} | state.failed_in(Layer.GOLD)
    unified = gold | {g for g, batch in state.games.items() if batch > state.floor(Layer.UNIFIED)}
    games: dict[str, list[str]] = {
        Layer.SILVER: sorted(silver),
        Layer.GOLD: sorted(gold),
        Layer.UNIFIED: sorted(unified | state.failed_in(Layer.UNIFIED)),
    }
    records = {p: (end - part.start[p]) // now.unit for p, end in part.end.items() if end > part.start[p]} if part else {}
    return Backlog(records, games, sum(names.values()))


def games_waiting(pipeline: Pipeline) -> Counter[str]:
    """Possible games -> their rows in bronze batches that silver does not have; one column is read."""
    bronze = pipeline.bronze.open()
    if bronze is None or not bronze.transaction_version(Txn.BATCH):
        return Counter()
    floor = pipeline.progress.read(BronzeIdentity.of(bronze).key).floor(Layer.SILVER)
    routing = Routing(frozenset(pipeline.settings.games))
    found: Counter[str] = Counter()
    for name, rows in _names_above(pipeline, bronze, floor).items():
        if routing.refusal(name) is None:
            found[name] = rows
    return found


def _names_above(pipeline: Pipeline, bronze: DeltaTable, floor: int) -> Counter[str]:
    entity = pipeline.settings.entity_column
    system, prefix = file_system(pipeline.bronze)
    root = bronze.table_uri.rstrip("/") + "/"
    found: Counter[str] = Counter()
    for uri in files_with(bronze, "_batch", floor):
        try:
            with system.open_input_file(prefix + uri.removeprefix(root)) as source:
                file = pq.ParquetFile(source)
                if entity not in file.schema_arrow.names:
                    continue
                for batch in file.iter_batches(columns=[entity, "_batch"]):
                    new = pa.table(batch).filter(pc.greater(batch.column("_batch"), floor))
                    counted = pc.value_counts(new.column(entity)).to_pylist()
                    found.update({entry["values"]: entry["counts"] for entry in counted})
        except FileNotFoundError as error:
            raise DataError(f"{pipeline.bronze.uri}: a file that its log lists is gone ({error})") from None
    return found
