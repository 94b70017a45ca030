"""Limits of records, files and names of games; a part of `Settings`. Effects of each limit: docs/operations.md."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class LimitSettings(BaseSettings):
    """Limits of one record, one file, all games, and one query."""

    max_record_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, le=512 * 1024 * 1024, description="bytes of one record; larger ones go to quarantine"
    )
    files_max_rows: int = Field(
        100_000_000, ge=1, le=2**32 - 1, description="records (of JSON: lines) of one file; what is left of it is not read"
    )
    files_max_unpacked_bytes: int = Field(
        16 * 1024**3, ge=1, description="bytes of a packed file once it is unpacked; what is left of it is not read"
    )
    max_games: int = Field(2_000, ge=1, description="past so many games a new name needs `new_game_min_rows` or the allow list")
    new_game_min_rows: int = Field(1_000, ge=1, description="rows in one pass that admit a new name past `max_games`")
    max_games_ever: int = Field(
        10_000, ge=1, description="past so many games (or `max_games`, if that is more) a new name needs the allow list"
    )
    max_columns: int = Field(
        10_000, ge=100, description="columns of bronze, nested ones counted, that new schemas may make it have"
    )
    max_unknown_ids: int = Field(
        1_000, ge=1, description="schema ids unknown to the registry after which no more are requested in one micro-batch"
    )
    sql_memory_bytes: int = Field(
        4 * 1024**3,
        ge=64 * 1024**2,
        description="bytes of memory of `game-events sql`; what does not fit goes to the disk, or fails",
    )
