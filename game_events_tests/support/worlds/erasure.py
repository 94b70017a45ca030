"""Every byte below a lakehouse's root, as somebody would read it who looks for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from game_events.config.settings import Settings


def _texts(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return b"\n".join(_texts(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return b"\n".join(_texts(part) for part in value)
    return str(value).encode()


def places_of(settings: Settings, text: str) -> list[str]:
    """Files that hold a text: in their bytes, and Parquet files in any value, nested and binary ones too."""
    found = []
    for path in sorted(Path(settings.lakehouse).rglob("*")):
        if not path.is_file():
            continue
        held = text.encode() in path.read_bytes()
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            held |= text.encode() in _texts(file.read().to_pylist())
        if held:
            found.append(str(path.relative_to(settings.lakehouse)))
    return found


def tables_of(settings: Settings, text: str) -> set[str]:
    """Tables with such files."""
    return {place.partition("/")[0] for place in places_of(settings, text)}
