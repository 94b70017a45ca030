"""Events of 30 message types of 100 games: a table for each type of each game beside one for each game, in turns.

Kafka to bronze, silver, gold and the unified table: a first load of all events, and increments of a record of each type of each
game.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from confluent_kafka.schema_registry import Schema
from google.protobuf.message_factory import GetMessageClass

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from benchmarks.messages import BASE_S, compiled
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.messages import BATCH, BATCH_TUNING, KafkaWriter
from game_events.schema_registry import registry_client
from game_events.sources.kafka.client import ensure_topic

TYPES, GAMES, GAMERS = 30, 100, 100
#: Records that are different from each other; they are sent again and again.
POOL = TYPES * GAMES * 10
TOPIC = "bench_types"
FIRST, INCREMENT = "first load", f"{TYPES * GAMES:,} new records"
#: Name -> settings.
ENTITY, TYPED = "a table for each game", "a table for each type of each game"
WAYS = {ENTITY: {}, TYPED: {"silver_per": "entity_and_type"}}
#: Increments before the clock runs, and measured.
WARM, MEASURED = 2, 3


def types(arena: Arena) -> list[Figure]:
    """Rates of both, and their ratio; one round is left out."""
    messages = _messages()
    _send(arena, TOPIC, messages, arena.events)
    for pair, way in product(range(-1, arena.pairs), WAYS):
        with arena.lakehouse() as root:
            _timed(arena, FIRST, way, pair, arena.pipeline(TOPIC, root, **WAYS[way]), arena.events)
    topic = f"{TOPIC}_more"
    with arena.lakehouse() as root:
        for pair in range(-1 - WARM, MEASURED * arena.pairs):
            _send(arena, topic, messages, TYPES * GAMES)
            for way in WAYS:
                _timed(arena, INCREMENT, way, pair, _pipeline(arena, topic, root, way), TYPES * GAMES)
    return _figures(arena)


def _pipeline(arena: Arena, topic: str, root: Path, way: str) -> Pipeline:
    return arena.pipeline(topic, root / str(list(WAYS).index(way)), **WAYS[way])


def _text() -> str:
    """A schema of all types: three fields that all have, and three of each."""
    own = "string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;"
    each = (
        f"message Event{n:02} {{ {own} int64 level_{n} = 4; double amount_{n} = 5; string note_{n} = 6; }}"
        for n in range(TYPES)
    )
    return f'syntax = "proto3"; package bench; import "google/protobuf/timestamp.proto"; {" ".join(each)}'


def _messages() -> list[tuple[int, bytes]]:
    """The records of the pool, without their schema's id: (index of the type, payload)."""
    (schema,) = compiled([_text()])
    descriptors = [schema.message((n,)) for n in range(TYPES)]
    classes = [GetMessageClass(descriptor) for descriptor in descriptors if descriptor is not None]
    made = []
    for number in range(POOL):
        kind = number % TYPES
        game = number // TYPES % GAMES
        own = {f"level_{kind}": number % 50, f"amount_{kind}": number / 7, f"note_{kind}": f"note {number % 1_000}"}
        at = {"seconds": BASE_S + number}
        message = classes[kind](game_name=f"game_{game:03}", gamer_id=f"gamer_{number % GAMERS}", event_timestamp=at, **own)
        made.append((kind, message.SerializeToString()))
    return made


def _send(arena: Arena, topic: str, messages: list[tuple[int, bytes]], count: int) -> None:
    settings = settings_for(arena.folder, topic, arena.folder / "unused")
    arena.say(f"producing {count:,} events of {TYPES} types of {GAMES} games")
    ensure_topic(settings, PARTITIONS)
    with registry_client(settings) as client:
        schema_id = client.register_schema(f"{topic}-value", Schema(_text(), "PROTOBUF"))
    head = b"\0" + schema_id.to_bytes(4, "big")
    # The index path: [0] is short, others have their length and a zigzag number.
    values = [head + (b"\0" if not kind else bytes([2, 2 * kind])) + payload for kind, payload in messages]
    with KafkaWriter(settings, BATCH_TUNING) as writer:
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            writer.write_batch([{"value": values[number % len(values)]} for number in numbers])


def _timed(arena: Arena, what: str, way: str, pair: int, pipeline: Pipeline, events: int) -> None:
    reports: list[RunReport] = []
    arena.timed(f"{what}, {way}", GAMES, pair, lambda: reports.append(refresh(pipeline)), events)
    (report,) = reports
    assert report.success, report.errors
    rows = {layer: report.rows(layer) for layer in ("bronze", "silver")}
    assert rows == {"bronze": events, "silver": events}, rows


def _figures(arena: Arena) -> list[Figure]:
    figures = []
    for what in (FIRST, INCREMENT):
        seconds = {way: [step.seconds for step in arena.measured.of(f"{what}, {way}", GAMES)] for way in WAYS}
        figures += [Figure(f"{what}, {way}", "s", found) for way, found in seconds.items()]
        # At least 0.6 of the rate.
        goal = Target("<=", 1 / 0.6) if what == FIRST else None
        figures.append(ratio(f"{what}: time, tables of types / of games", seconds[TYPED], seconds[ENTITY], goal))
    return figures
