"""The column map's shares in the metadata of Delta columns, when two runs add to them at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from game_events.decoding.columns import METADATA_KEY
from game_events.errors import ConflictError

#: (column, its metadata).
Columns = Iterable[tuple[str, Mapping[str, object]]]


def merge_shares(table: str, held: Columns, wanted: Columns) -> dict[str, str]:
    """What the shares of a table's columns become with those of a plan added.

    A rival may have added other fields since the plan was made: theirs stay. It may also have given one of our fields another
    column: then our files have it in the wrong place.

    Returns:
        column -> share, for the columns whose share changes.

    Raises:
        ConflictError: a rival has given a field another column; plan again.
    """
    shares = {column: _share(metadata) for column, metadata in held}
    places = {key: (column, name) for column, share in shares.items() for key, name in share.items()}
    changed: dict[str, str] = {}
    for column, metadata in wanted:
        ours = _share(metadata)
        for key, name in ours.items():
            if places.get(key, (column, name)) != (column, name):
                raise ConflictError(f"{table}: a rival run gave the field {key} the column {places[key][0]}, not {column}")
        merged = shares.get(column, {}) | ours
        if merged != shares.get(column, {}):
            changed[column] = json.dumps(dict(sorted(merged.items())), separators=(",", ":"))
    return changed


def _share(metadata: Mapping[str, object]) -> dict[str, str]:
    return dict(json.loads(str(metadata.get(METADATA_KEY, "{}"))))
