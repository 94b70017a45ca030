"""Whether the settings of the layout of files fit the columns that there are."""

from __future__ import annotations

import pyarrow as pa

from game_events.config.file_layout import FileLayout
from game_events.errors import ConfigurationError, some_columns
from game_events.lakehouse.data.columns import BRONZE_ONLY
from game_events.lakehouse.data.layout import has_days
from game_events.lakehouse.laying_out import can_be_sorted
from game_events.lakehouse.tables import Layer
from game_events.pipeline.context import Pipeline

#: Tables of silver that are looked at for columns of transformations.
TABLES = 20


def require_columns(pipeline: Pipeline) -> str:
    """What the layouts are.

    Raises:
        ConfigurationError: names the columns that no table has, or whose values have no days or no order.
    """
    layouts = pipeline.lakehouse.file_layouts
    bronze = pipeline.bronze.open_to_read()
    if bronze is None:
        return "columns are not known before bronze has rows"
    columns = {Layer.BRONZE: pa.schema(bronze.schema())}
    columns[Layer.SILVER] = _silver_columns(pipeline, columns[Layer.BRONZE])
    wrong = [text for layer, layout in layouts.items() for text in _wrong(layer, layout, columns[Layer(layer)])]
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    return "; ".join(f"{layer}: {_described(layout)}" for layer, layout in layouts.items())


def _silver_columns(pipeline: Pipeline, bronze: pa.Schema) -> pa.Schema:
    """Bronze's without its own ones, and what transformations have made in some games' tables."""
    fields: dict[str, pa.Field] = {field.name: field for field in bronze if field.name not in BRONZE_ONLY}
    if not pipeline.extensions.transformations:
        return pa.schema(fields.values())
    for game in pipeline.lakehouse.games()[:TABLES]:
        handle = pipeline.lakehouse.silver(game).open_to_read()
        fields = {field.name: field for field in (pa.schema(handle.schema()) if handle is not None else ())} | fields
    return pa.schema(fields.values())


def _wrong(layer: str, layout: FileLayout, columns: pa.Schema) -> list[str]:
    """What does not fit, in sentences."""
    texts = []
    days = () if layout.day is None else (layout.day,)
    for setting, names in (("LAYOUT", (*days, *layout.cluster)), ("STATISTICS_COLUMNS", layout.statistics)):
        unknown = [name for name in names if name not in columns.names]
        if unknown:
            has = some_columns(columns.names, unknown[0])
            texts.append(f"GAME_EVENTS_{setting}: {layer} has no column {', '.join(unknown)}. It has {has}")
    if layout.day in columns.names and not has_days(columns, layout.day):
        texts.append(f"GAME_EVENTS_LAYOUT: {layer}: {layout.day} is {columns.field(layout.day).type}, which has no days")
    nested = [n for n in layout.with_statistics if n in columns.names and not can_be_sorted(columns, [n])]
    if nested:
        texts.append(f"GAME_EVENTS_LAYOUT, STATISTICS_COLUMNS: {layer}: {', '.join(nested)}: nested values have no order")
    return texts


def _described(layout: FileLayout) -> str:
    parts = [f"files by day of {layout.day}"] if layout.day is not None else []
    parts += [f"files by values of {', '.join(layout.cluster)}"] if layout.cluster else []
    parts += [f"statistics of {', '.join(layout.statistics)}"] if layout.statistics else []
    return ", ".join(parts)
