"""Merging the column map in the columns' metadata, when two runs add columns at the same time."""

import json
from collections.abc import Iterable, Mapping

from game_events.decoding.core.column_map import METADATA_KEY, level_of
from game_events.errors import ConflictError, DataError

#: (column, its metadata).
Columns = Iterable[tuple[str, Mapping[str, object]]]


def merge_shares(table: str, held: Columns, wanted: Columns) -> dict[str, str]:
    """Add a plan's share of the column map to the table's; fields that concurrent writers have added are kept.

    Returns:
        column -> share, for columns with a changed share.

    Raises:
        ConflictError: a concurrent writer gave a field another column, or its column to another field of the same message: the
            files have it in the wrong place; plan again.
    """
    shares = {column: _share(metadata) for column, metadata in held}
    places = {key: (column, name) for column, share in shares.items() for key, name in share.items()}
    owners: dict[tuple[str, ...], list[str]] = {}
    for key, (column, name) in places.items():
        owners.setdefault((column, name, *level_of(key)), []).append(key)
    changed: dict[str, str] = {}
    for column, metadata in wanted:
        ours = _share(metadata)
        for key, name in ours.items():
            if places.get(key, (column, name)) != (column, name):
                raise ConflictError(f"{table}: a concurrent run gave the field {key} the column {places[key][0]}, not {column}")
            # Fields that share a column on purpose (a key with a new kind or number) are all in the plan's own share.
            others = [other for other in owners.get((column, name, *level_of(key)), ()) if other not in ours]
            if others and key not in places:
                raise ConflictError(f"{table}: a concurrent run gave {column} to the field {others[0]}, not to {key}")
        merged = shares.get(column, {}) | ours
        if merged != shares.get(column, {}):
            changed[column] = json.dumps(dict(sorted(merged.items())), separators=(",", ":"))
    return changed


def refuse_other_case(table: str, held: Iterable[str], new: Iterable[str], *, concurrent: bool) -> None:
    """Refuse new columns with names that differ from a table's by case alone: Delta and Spark compare names without case.

    `new`: names of columns to add; those in `held` get further nested fields. `concurrent`: a concurrent writer may have added
    the other name: rows that are planned again find it.

    Raises:
        ConflictError: names differ by case alone.
        DataError: the same, where planning again changes nothing.
    """
    names = {name.lower(): name for name in held}
    other = ", ".join(f"{name} is {names[name.lower()]} there" for name in new if names.get(name.lower(), name) != name)
    if other and concurrent:
        raise ConflictError(f"{table}: a concurrent run has added columns with names that differ by case alone: {other}")
    if other:
        raise DataError(
            f"{table}: names of new columns differ from those of the table by case alone: {other}. Refresh this table fully: "
            "that gives it the new names"
        )


def _share(metadata: Mapping[str, object]) -> dict[str, str]:
    return dict(json.loads(str(metadata.get(METADATA_KEY, "{}"))))
