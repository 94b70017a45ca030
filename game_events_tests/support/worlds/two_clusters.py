"""Two clusters with a topic of the same name, and two registries in which one id is two schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from game_events.config.settings import Settings
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_lost, offsets_unique
from game_events.pipeline.context import Pipeline
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.quality import SCHEMA, varint
from game_events_tests.support.worlds.topic import send_values

#: The same message type in the second registry, in which field 4 is another one.
ELSEWHERE = SCHEMA.replace("optional int64 amount = 4; optional string note = 5;", "optional string remark = 4;")
#: An id that no registry gives by itself: by the fixture `one_id` it is SCHEMA in the first one, ELSEWHERE in the second.
ONE_ID = 2_000_000_000


def event(game: str, tail: bytes = b"", gamer: bytes = b"ann") -> bytes:
    """A payload of both schemas; `tail`: field 4."""
    return b"\x0a" + bytes([len(game)]) + game.encode() + b"\x12" + bytes([len(gamer)]) + gamer + b"\x1a\x02\x08\x07" + tail


def amounts(number: int) -> bytes:
    """Field 4 of the first schema."""
    return b"\x20" + varint(number)


def remarks(text: str) -> bytes:
    """Field 4 of the second."""
    return b"\x22" + bytes([len(text)]) + text.encode()


def send(settings: Settings, schema_id: int, payloads: Iterable[bytes]) -> None:
    """Framed records, to the topic's one partition."""
    send_values(settings, [b"\0" + schema_id.to_bytes(4, "big") + b"\0" + payload for payload in payloads])


def by_source(settings: Settings, table: str = BRONZE, what: str = "count(*)") -> dict[str | None, Any]:
    """Source -> a figure of its rows."""
    return dict(rows(settings, table, f"SELECT _source, {what} FROM t GROUP BY 1 ORDER BY 1"))


def assert_sound(pipeline: Pipeline) -> None:
    """Each record is there once, no offset was left out, and the books balance."""
    for check in (offsets_continuous(pipeline), offsets_unique(pipeline), offsets_lost(pipeline)):
        assert check.passed, check.summary
    found = reconcile(pipeline)
    assert found.passed, found.summary()
