"""Settings of the layout of files: which rows are in one file (`LAYOUT`), statistics of which columns (`STATISTICS_COLUMNS`).

Both are by layer. A table stays a plain one: the files of a day, or of a range of values, have bounds by which any reader
leaves them out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

#: By days of the event's time, and of the record's.
DAY, ARRIVAL_DAY = "day", "arrival_day"
#: Column with the time of the record.
ARRIVAL = "_kafka_timestamp"
#: Layers whose files have a layout; gold's tables are one file each.
LAYERS = ("bronze", "silver")
#: The columns with statistics of both.
BOTH = "all"

#: `day`, `arrival_day`, or columns.
LayerLayout = str | tuple[str, ...]

_ENTRY = re.compile(r"\s*(\w+)\s*=\s*(\w+(?:\s*\([^()]*\))?)\s*(?:,|$)")
_CLUSTER = re.compile(r"cluster\s*\(([^()]*)\)")
_FORMS = "day, arrival_day, or columns: cluster(a, b), as a list [a, b] in YAML and JSON"


@dataclass(frozen=True)
class FileLayout:
    """Layout of one table's files; by default none.

    Attributes:
        day: each file has rows of one day (UTC) of this column.
        cluster: rows with near values of these columns are in one file.
        statistics: columns with statistics, whatever their place.
    """

    day: str | None = None
    cluster: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @cached_property
    def with_statistics(self) -> tuple[str, ...]:
        """Columns with statistics, those of the layout, too."""
        days = () if self.day is None else (self.day,)
        return tuple(dict.fromkeys((*days, *self.cluster, *self.statistics)))

    @cached_property
    def mark(self) -> str:
        """What the names of files say that are clustered by these columns."""
        return f"by{hashlib.sha256(json.dumps(self.cluster).encode()).hexdigest()[:8]}"


#: Files with any rows.
NO_LAYOUT = FileLayout()


def file_layouts(
    layouts: Mapping[str, LayerLayout], statistics: Mapping[str, tuple[str, ...]], time: str
) -> dict[str, FileLayout]:
    """Layer -> layout of its tables' files, of those with any; `time`: the column with the event's time."""
    made: dict[str, FileLayout] = {}
    for layer in LAYERS:
        chosen = layouts.get(layer, ())
        day = {DAY: time, ARRIVAL_DAY: ARRIVAL}[chosen] if isinstance(chosen, str) else None
        cluster = chosen if isinstance(chosen, tuple) else ()
        of_layer = (*statistics.get(layer, ()), *statistics.get(BOTH, ()))
        layout = FileLayout(day, cluster, tuple(dict.fromkeys(of_layer)))
        if layout != NO_LAYOUT:
            made[layer] = layout
    return made


def _split_layouts(value: object) -> object:
    """``silver=day, bronze=cluster(a, b)``, or JSON, as a mapping."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("{"):
        return _json(text)
    layouts: dict[str, str] = {}
    end = 0
    while end < len(text):
        entry = _ENTRY.match(text, end)
        if entry is None or entry[1] in layouts:
            raise ValueError(f"must be layer=layout, comma separated, each layer once; a layout is {_FORMS}")
        layouts[entry[1]] = entry[2]
        end = entry.end()
    return layouts


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("is not valid JSON") from None


def _split_columns(value: object) -> object:
    """``a, b`` for both layers, a list, or a mapping of layers, also as JSON."""
    if isinstance(value, str):
        value = _json(value) if value.strip().startswith(("{", "[")) else _names(value)
    return {BOTH: value} if isinstance(value, list | tuple) else value


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _checked_layouts(value: dict[str, LayerLayout]) -> dict[str, LayerLayout]:
    _require_layers(value, LAYERS)
    checked: dict[str, LayerLayout] = {}
    for layer, layout in value.items():
        cluster = _CLUSTER.fullmatch(layout) if isinstance(layout, str) else None
        chosen = layout if cluster is None else _names(cluster[1])
        if isinstance(chosen, str) and chosen not in (DAY, ARRIVAL_DAY):
            raise ValueError(f"{layer}: {chosen!r} is no layout: it is {_FORMS}")
        if isinstance(chosen, tuple):
            _require_names(layer, chosen)
        checked[layer] = chosen
    return checked


def _checked_columns(value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    _require_layers(value, (*LAYERS, BOTH))
    for layer, names in value.items():
        _require_names(layer, names)
    return value


def _require_layers(value: Mapping[str, object], layers: tuple[str, ...]) -> None:
    unknown = ", ".join(sorted(value.keys() - set(layers)))
    if unknown:
        raise ValueError(f"has no layer {unknown}: there are {', '.join(layers)}")


def _require_names(layer: str, names: tuple[str, ...]) -> None:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{layer}: needs one column or several, each once")


Layouts = Annotated[dict[str, LayerLayout], NoDecode, BeforeValidator(_split_layouts), AfterValidator(_checked_layouts)]
StatisticsColumns = Annotated[
    dict[str, tuple[str, ...]], NoDecode, BeforeValidator(_split_columns), AfterValidator(_checked_columns)
]
