"""Detection of games without any key, or without any time, in their gold rows: reported, never silently NULL."""

import json
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.column_names import folded
from game_events.config.settings import Settings
from game_events.decoding.core.column_types import kind_of
from game_events.decoding.core.kept_columns import Kept, is_of_any_kind, kept_columns
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import opened
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.tables import add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import FIRST, has_shipped_columns, player_agg
from game_events.pipeline.reporting.steps import CheckResult

KNOWN = "keys_and_times_known"
#: Games that the check names.
SHOWN = 20


def looked_at(settings: Settings) -> dict[str, str]:
    """Column of gold that is NULL where a key or time of silver is -> the setting with silver's column."""
    found = {settings.key_column: "GAME_EVENTS_KEY_COLUMN"}
    return found | ({FIRST: "GAME_EVENTS_TIME_COLUMN"} if has_shipped_columns(player_agg(settings)) else {})


def null_notices(
    settings: Settings, columns: Mapping[str, str], game: str, files: Collection[StagedFile], silver: DeltaTable
) -> list[str]:
    """Notices for a game without any key, or time, in its new gold files; `columns`: see `looked_at`; `silver`: its table."""
    stats = [json.loads(f.stats) for f in files if f.rows]
    sentences = []
    for column, setting in columns.items():
        if not stats or any(s["nullCount"].get(column) != s["numRecords"] for s in stats):
            continue
        wanted = settings.key_column if column == settings.key_column else settings.time_column
        names = (f.name for f in silver.schema().fields)
        others = ", ".join(sorted(c for c in names if c != wanted and is_of_any_kind(c, wanted)))
        elsewhere = f" There are columns of other kinds: {others} (docs/decoding.md)." if others else ""
        sentences.append(
            f"gold of {game}: {column} is NULL in every row, as no row of its silver table has a value in {wanted}.{elsewhere} "
            f"If its producers call it something else: {setting}"
        )
    return sentences


def of_another_kind(settings: Settings, columns: Mapping[str, pa.DataType]) -> list[str]:
    """Notices for key and time columns of another type in bronze, because records came before the settings kept the name."""
    return [
        f"bronze's column {kept.column} is {kind_of(columns[kept.column])}, as its first records had it; "
        f"{kept.kind} is in {other}: set {setting} to {other}, or begin a new lakehouse"
        for setting, kept in key_and_time_kept(settings).items()
        if kept.column in columns
        and kind_of(columns[kept.column]) != kept.kind
        and (other := f"{kept.field}__{kept.kind}") in columns
    ]


def keys_and_times_known(pipeline: Pipeline) -> CheckResult:
    """Check for games without a key, or without a time, in all gold rows; reads the tables' logs alone."""
    bronze = pipeline.open_bronze()
    known = pipeline.progress.read(BronzeIdentity.of(bronze).key).games if bronze is not None else {}
    wrong = of_another_kind(pipeline.settings, {f.name: f.type for f in pa.schema(bronze.schema())}) if bronze else []
    columns = list(looked_at(pipeline.settings))
    unknown = {
        game: missing
        for game, handle in opened(sorted(known), pipeline.lakehouse.gold).items()
        if (missing := _all_null(handle, columns))
    }
    wrong += [f"{game}: {', '.join(missing)} NULL in every row" for game, missing in list(unknown.items())[:SHOWN]]
    wrong += [f"and {len(unknown) - SHOWN} more"] if len(unknown) > SHOWN else []
    summary = "; ".join(wrong) or f"{len(known)} {pipeline.settings.names.entities} have keys and times"
    return CheckResult(KNOWN, "gold", not wrong, summary, {"games": len(known), "games_without": len(unknown)})


def _all_null(handle: DeltaTable, columns: Collection[str]) -> list[str]:
    actions = add_actions(handle)
    rows = pc.sum(actions.column("num_records")).as_py() or 0
    nulls = {c: f"null_count.{c}" for c in columns if f"null_count.{c}" in actions.column_names}
    return [c for c, name in nulls.items() if rows and pc.sum(actions.column(name)).as_py() == rows]


def key_and_time_kept(settings: Settings) -> dict[str, Kept]:
    """Setting -> the reserved column that it names."""
    kept = kept_columns(settings)
    names = {"GAME_EVENTS_KEY_COLUMN": settings.key_column, "GAME_EVENTS_TIME_COLUMN": settings.time_column}
    return {setting: kept[folded(name)] for setting, name in names.items()}
