"""The definitions of game, player and time, tried on some of bronze's newest rows; for `doctor` and `run --dry-run`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodedBatch, DecodePlan, TypeKey
from game_events.errors import ConfigurationError, first_few, many
from game_events.lakehouse.data.columns import OWN_COLUMNS, is_sourced, own_columns
from game_events.lakehouse.data.reading import read_parts, row_count, selection
from game_events.lakehouse.tables import is_game
from game_events.pipeline.context import Pipeline
from game_events.pipeline.definitions import REDECODE, misfits_named, refuse_others, unknown_names
from game_events.workers.computed import Computation
from game_events.workers.decode import by_source, stored_records
from game_events.workers.records import RecordDecoder
from game_events.workers.results import StagedRows

#: Rows of bronze's newest file that are tried; values in a text, and characters of one.
TRIED_ROWS = 200
SHOWN, VALUE_CHARS = 3, 60
#: Plans until the rows' types, names of schemas and members are known: a type first, then its members.
PLANS = 5


@dataclass
class Trial:
    """What came of it: column -> its values, with their rows; the message types' columns; what workers count."""

    rows: int = 0
    values: dict[str, Counter[Any]] = field(default_factory=dict)
    columns: ColumnMap = field(default_factory=ColumnMap)
    result: StagedRows = field(default_factory=StagedRows)


def check_definitions(pipeline: Pipeline) -> tuple[bool, str]:
    """Whether all is well, and what the definitions are and give.

    Raises:
        ConfigurationError: a run would be refused, as bronze's rows are by other definitions; or none fits.
    """
    definitions = pipeline.definitions
    if definitions is None:
        return True, "game, player and time are decoded fields"
    text = "; ".join(f"{column}: {how}" for column, how in definitions.described())
    bronze = pipeline.open_bronze()
    if bronze is None or not row_count(bronze):
        return True, f"{text}; not tried: {pipeline.bronze.name} has no row yet"
    trial = tried(pipeline, bronze)
    shown = "; ".join(_shown(name, values) for name, values in trial.values.items())
    text = f"{text}. Of {many(trial.rows, 'row')} of {pipeline.bronze.name} they make {shown or 'nothing'}"
    try:
        refuse_others(pipeline, bronze)
    except ConfigurationError as error:
        raise ConfigurationError(f"{text}. But {error}") from None
    wrong = [*misfits_named(pipeline, trial.result.misfits), *unknown_names(pipeline, trial.columns)]
    entity = trial.values.get(definitions.entity_column, Counter())
    unrouted = Counter({name: rows for name, rows in entity.items() if not is_game(name)})
    if 2 * unrouted.total() > trial.rows:
        wrong.append(f"most of these rows are in no table of silver ({_most(unrouted)}); after a change: `{REDECODE}`")
    return not wrong, "; ".join([text, *wrong])


def _shown(column: str, values: Counter[Any]) -> str:
    return f"{column} {_most(values)}"


def _most(values: Counter[Any]) -> str:
    """The values that most rows have."""
    most = [repr(value)[:VALUE_CHARS] for value, _ in values.most_common(SHOWN)]
    return f"{first_few(most, SHOWN, ', ')}{', ...' if len(values) > SHOWN else ''}"


def tried(pipeline: Pipeline, bronze: DeltaTable) -> Trial:
    """Decode some of bronze's newest rows from their raw values, and compute their game, player and time."""
    trial = Trial()
    definitions = pipeline.definitions
    rows = _newest_rows(pipeline, bronze)
    if definitions is None or not rows.num_rows:
        return trial
    plan, decoded = _decoded(pipeline, bronze, rows)
    trial.columns = plan.columns
    names = dict.fromkeys((definitions.entity_column, *(item.column for item in definitions.computed)))
    computation = Computation(definitions, plan.columns)
    for batch, of_source in decoded:
        for good in computation.applied(batch, of_source, trial.result).good:
            trial.rows += len(good.rows)
            for name in names:
                if name in good.columns.column_names:
                    trial.values.setdefault(name, Counter()).update(_texts(good.columns.column(name)))
    return trial


def _decoded(
    pipeline: Pipeline, bronze: DeltaTable, rows: pa.RecordBatch
) -> tuple[DecodePlan, list[tuple[DecodedBatch, pa.RecordBatch]]]:
    """The rows by source, decoded, and the plan: made again for what they show to be missing in it."""
    catalog = pipeline.catalog
    wanted: set[TypeKey] = set()
    for _ in range(PLANS):
        plan = catalog.plan(pipeline.column_map(bronze), wanted)
        decoder = RecordDecoder(plan)
        parts = []
        known = set(wanted)
        is_whole = True
        for source, part in by_source([rows]):
            decoded = decoder.decode_records(stored_records(part, source, plan.registry_of(source)))
            parts.append((decoded, part))
            wanted |= decoded.unknown
            catalog.look_up_names(decoded.unknown_names, catalog.max_unknown_ids)
            catalog.grow(decoded.grown)
            is_whole &= not (decoded.unknown_names or decoded.grown)
        if is_whole and wanted == known:
            break
    return plan, parts


def _texts(values: pa.ChunkedArray) -> list[str | None]:
    return list(values.cast(pa.string()).to_pylist())


def _newest_rows(pipeline: Pipeline, bronze: DeltaTable) -> pa.RecordBatch:
    """The first rows with a raw value of bronze's newest file; none if it has no such row."""
    files = sorted(selection(bronze).data, key=lambda file: file.highest_batch or 0, reverse=True)[:1]
    paths = [file.plain_path for file in files]
    columns = own_columns(OWN_COLUMNS, sourced=is_sourced(bronze))
    parts = list(islice(read_parts(pipeline.bronze, columns, paths, batch_rows=TRIED_ROWS), 1))
    rows = pa.concat_tables([columns.empty_table(), *parts])
    with_value = rows.filter(pc.is_valid(rows.column("_raw_value"))).combine_chunks().to_batches(TRIED_ROWS)
    return next(iter(with_value), pa.RecordBatch.from_pylist([], schema=columns))
