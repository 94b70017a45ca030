"""Limits of records, files and names of games. Effects of each limit: docs/operations.md."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings


class LimitSettings(BaseSettings):
    """Limits of one record, one file, all games, and one query."""

    group: ClassVar[str] = "limits"

    # --- limits (docs/operations.md)
    max_record_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=512 * 1024 * 1024,
        description="bytes of one record; larger ones go to quarantine, truncated",
    )
    files_max_rows: int = Field(
        100_000_000,
        ge=1,
        le=2**32 - 1,
        description="records (of JSON: lines) of one file; the rest of the file is one row of quarantine",
    )
    files_max_unpacked_bytes: int = Field(
        16 * 1024**3,
        ge=1,
        description="bytes of a compressed file once decompressed; the rest of the file is one row of quarantine",
    )
    max_games: int = Field(
        2_000, ge=1, description="above this number of games, a new name needs `NEW_GAME_MIN_ROWS` rows or the allow list"
    )
    new_game_min_rows: int = Field(1_000, ge=1, description="rows in one pass that admit a new name above `MAX_GAMES`")
    max_games_ever: int = Field(
        10_000,
        ge=1,
        description="above this number of games (or `MAX_GAMES`, if larger), a new name needs the allow list, however "
        "many rows it has",
    )
    max_columns: int = Field(
        10_000,
        ge=100,
        description="columns of bronze, nested ones counted: records of a type with more new columns are quarantined as "
        "`BAD_SCHEMA`",
    )
    max_unknown_ids: int = Field(
        1_000,
        ge=1,
        description="schema ids unknown to the registry, after which no more are requested in one micro-batch: their "
        "records are quarantined as `UNKNOWN_SCHEMA`, too",
    )
    sql_memory_bytes: int = Field(
        4 * 1024**3,
        ge=64 * 1024**2,
        description="bytes of memory of `game-events sql`; the rest goes to temporary files if possible, else the query fails",
    )
