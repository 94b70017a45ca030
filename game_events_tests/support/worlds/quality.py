"""Small events with an amount and a note, rules over them, and where each event ended up, read by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.audits import RECOMPUTED
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.context import Pipeline
from game_events_tests.support.reconciliation import coordinates, count, rows
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import assert_gold_follows_silver

SCHEMA = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event {
  string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;
  optional int64 amount = 4; optional string note = 5;
}
"""


class Event(NamedTuple):
    """One event; None: the field is not set. `day`: of its time, since 1970."""

    game: str
    amount: int | None = None
    note: str | None = None
    gamer: str = "ann"
    day: int | None = 0


def encoded(event: Event) -> bytes:
    """Its payload."""
    head = b"".join(bytes([tag << 3 | 2, len(text)]) + text.encode() for tag, text in ((1, event.game), (2, event.gamer)))
    seconds = b"" if event.day is None else b"\x08" + varint((event.day * 86_400 + 7) % 2**64)
    body = head if event.day is None else head + bytes([0x1A, len(seconds)]) + seconds
    if event.amount is not None:
        body += b"\x20" + varint(event.amount % 2**64)
    return body if event.note is None else body + bytes([0x2A, len(event.note)]) + event.note.encode()


def varint(value: int) -> bytes:
    """As protobuf has it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def send_events(settings: Settings, events: Sequence[Event]) -> None:
    """Into the topic's one partition, in order: the first event ever is offset 0."""
    frame = b"\0" + register(settings, SCHEMA).to_bytes(4, "big") + b"\0"
    send_values(settings, [frame + encoded(event) for event in events], [("trace", b"t")])


def rule(name: str, sql: str, action: str = "warn", **more: object) -> dict[str, object]:
    """A rule as YAML has it."""
    return {"name": name, "sql": sql, "action": action, **more}


def in_silver(settings: Settings) -> dict[str, list[int]]:
    """Game -> offsets of its silver rows, for every silver table there is."""
    games = sorted(Lakehouse.of(settings).games())
    return {game: [c[2] for c in coordinates(settings, f"silver_{game}_events")] for game in games}


def in_quarantine(settings: Settings, what: str = "_kafka_offset, reason", where: str = "replayed_batch IS NULL") -> list[Any]:
    """Rows that rules keep out of silver now, by offset."""
    if not count(settings, "quarantine_events"):
        return []
    return rows(
        settings, "quarantine_events", f"SELECT {what} FROM t WHERE layer = 'silver' AND {where} ORDER BY _kafka_offset"
    )


def rejected(settings: Settings) -> list[int]:
    """Offsets of those rows; a row that stands twice is there twice."""
    return [offset for (offset,) in in_quarantine(settings, "_kafka_offset")]


def assert_sound(pipeline: Pipeline) -> None:
    """The books balance, no row is both in silver and kept out, and gold follows silver."""
    settings = pipeline.settings
    found = reconcile(pipeline)
    assert found.passed, found.summary()
    silver = in_silver(settings)
    kept = [offset for offsets in silver.values() for offset in offsets]
    out = rejected(settings)
    assert len(kept) == len(set(kept))
    assert len(out) == len(set(out))
    assert not set(kept) & set(out)
    assert_gold_follows_silver(settings, *silver)


def assert_checks_pass(pipeline: Pipeline, *, audit: bool = True) -> None:
    """No blocking check finds anything; without `audit`: but for the one that makes gold again, a long job of Spark."""
    checks = [check for check in CHECKS if check.blocking and (audit or check.name != RECOMPUTED)]
    assert len(checks) >= 3
    failed = [(check.name, found.summary) for check in checks if not (found := check.run(pipeline)).passed]
    assert failed == []
