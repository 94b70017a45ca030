"""Results of tables that a run has looked at and did not change: what they hold, as their log says."""

import logging

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from game_events.decoding.core.column_types import type_name
from game_events.errors import GameEventsError
from game_events.lakehouse.descriptions import comments_of
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline.reporting.tables import TableReport

log = logging.getLogger(__name__)


def present(layer: str, table: Table, game: str | None = None) -> TableReport | None:
    """The result of a table of which no row was changed; None: there is none, or its log does not say what it holds."""
    try:
        handle = table.open()
    except (GameEventsError, DeltaError, OSError) as error:
        log.warning("table=%s not_described=true cause=%s", table.name, type(error).__name__)
        return None
    if handle is None or add_actions(handle).column("num_records").null_count:
        return None
    files, schema = add_actions(handle), pa.schema(handle.schema())
    rows, size = (int(pc.sum(files.column(name)).as_py() or 0) for name in ("num_records", "size_bytes"))
    columns = [(column.name, type_name(column.type)) for column in schema]
    return TableReport(
        layer,
        table.name,
        table.uri,
        game,
        table_rows=rows,
        table_bytes=size,
        version=handle.version(),
        columns=columns,
        comments=comments_of(schema),
    )
