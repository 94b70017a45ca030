"""Columns and the column map's shares in their metadata, when two runs add to them at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from game_events.decoding.core.column_map import METADATA_KEY, level_of
from game_events.errors import ConflictError, DataError

#: (column, its metadata).
Columns = Iterable[tuple[str, Mapping[str, object]]]


def merge_shares(table: str, held: Columns, wanted: Columns) -> dict[str, str]:
    """What the shares of a table's columns become with those of a plan added.

    A rival may have added other fields since the plan was made: theirs stay. It may also have given one of our fields another
    column, or our column to another field of the same message: then our files have it in the wrong place.

    Returns:
        column -> share, for the columns whose share changes.

    Raises:
        ConflictError: a rival has given a field another column, or its column to another field; plan again.
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
                raise ConflictError(f"{table}: a rival run gave the field {key} the column {places[key][0]}, not {column}")
            # Fields that share a column on purpose (a key whose kind or number has changed) are all in the plan's own share.
            others = [other for other in owners.get((column, name, *level_of(key)), ()) if other not in ours]
            if others and key not in places:
                raise ConflictError(f"{table}: a rival run gave the column {column} to the field {others[0]}, not to {key}")
        merged = shares.get(column, {}) | ours
        if merged != shares.get(column, {}):
            changed[column] = json.dumps(dict(sorted(merged.items())), separators=(",", ":"))
    return changed


def refuse_other_case(table: str, held: Iterable[str], new: Iterable[str], *, rival: bool) -> None:
    """Delta and Spark compare names without case: a rival may have added the column that is `X` there and `x` here.

    Args:
        table: its name.
        held: the names of its columns.
        new: the names of columns to add; those that stand in `held` get other nested fields.
        rival: planned again, rows find the columns that are there by then.

    Raises:
        ConflictError: names differ by case alone.
        DataError: the same, where planning again changes nothing.
    """
    names = {name.lower(): name for name in held}
    other = [f"{name} is {names[name.lower()]} there" for name in new if names.get(name.lower(), name) != name]
    if other and rival:
        raise ConflictError(
            f"{table}: a rival run has added columns whose names differ from ours by case alone: {', '.join(other)}"
        )
    if other:
        raise DataError(
            f"{table}: names of new columns differ from those of the table by case alone: {', '.join(other)}. Refresh this "
            "table fully: that gives it the new names"
        )


def _share(metadata: Mapping[str, object]) -> dict[str, str]:
    return dict(json.loads(str(metadata.get(METADATA_KEY, "{}"))))
