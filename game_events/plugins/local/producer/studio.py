"""Sends the events of the example `studio` (examples/studio): three habits of producers, two clusters, and what goes wrong.

| topic | values | game | player | time |
|---|---|---|---|---|
| `events` of `live` | framed protobuf, 30 message types | header `game`, under several names | `player_id` | `Timestamp` |
| `chess.telemetry` of `live` | JSON without frame and schema | the topic's name | `player.id` | milliseconds |
| `sessions` of `mobile` | protobuf without frame | header `game` | `player_id` | seconds |

Some events are sent twice, some are days late, some records are garbage. What is sent depends on the seed alone.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import cast

from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from game_events.config.settings import Settings
from game_events.plugins.local.producer.messages import KafkaWriter, compile_text
from game_events.plugins.local.producer.produce import GamerTruth, framer
from game_events.plugins.local.servers.local_stack import StackState
from game_events.schema_registry import registry_client
from game_events.sources.kafka.client import ensure_topic

#: Topic -> name of its cluster.
CLUSTERS = {"events": "live", "chess.telemetry": "live", "sessions": "mobile"}
#: Game -> the names that producers have for it.
GAMES = {"rummy": ("rummy", "Rummy", "com.studio.rummy"), "chess": ("chess",), "uno": ("uno", "UNO")}
PLAYERS = 40
#: Message types of `studio.proto` that are sent framed; the last message is that of `sessions`.
FRAMED_TYPES = 30
SESSION = "studio.Session"

TWICE_SHARE = 0.05
LATE_SHARE = 0.05
LATE_DAYS = 20
GARBAGE_SHARE = 0.01
GARBAGE = b"\xff\xff neither a message nor JSON"

START = datetime(2026, 11, 1, tzinfo=UTC)
#: Of each topic.
PARTITIONS = 4


@dataclass(frozen=True)
class StudioEvent:
    """One event, before it has a form. `kind`: number of its message type; `name`: what its producer calls the game."""

    topic: str
    event_id: str
    game: str
    name: str
    player: str
    time: datetime
    kind: int


@dataclass
class Sent:
    """What was sent: by topic the records, those sent twice and the garbage; and gold as it must be."""

    records: Counter[str] = field(default_factory=Counter)
    twice: Counter[str] = field(default_factory=Counter)
    garbage: Counter[str] = field(default_factory=Counter)
    truth: dict[str, dict[str, GamerTruth]] = field(default_factory=lambda: defaultdict(dict))

    def count(self, event: StudioEvent) -> None:
        """Add an event to what gold must hold, once however often it is sent."""
        of_game = self.truth[event.game]
        once = GamerTruth(session_count=1, min_timestamp=event.time, max_timestamp=event.time)
        of_game[event.player] = of_game[event.player].merge(once) if event.player in of_game else once

    def add(self, other: Sent) -> None:
        """Add what another wave sent."""
        self.records += other.records
        self.twice += other.twice
        self.garbage += other.garbage
        for game, players in other.truth.items():
            for player, truth in players.items():
                known = self.truth[game].get(player)
                self.truth[game][player] = truth if known is None else known.merge(truth)


def events(records: int, seed: int) -> Iterator[StudioEvent]:
    """So many different events, over all topics."""
    draw = Random(seed)  # noqa: S311 - sample data
    for number in range(records):
        topic = draw.choice(["events", "events", "events", "chess.telemetry", "sessions"])
        game = "chess" if topic == "chess.telemetry" else draw.choice(list(GAMES))
        time = START + timedelta(seconds=number)
        if draw.random() < LATE_SHARE:
            time -= timedelta(days=draw.randint(1, LATE_DAYS))
        yield StudioEvent(
            topic,
            f"{seed}-{number}",
            game,
            draw.choice(GAMES[game]),
            f"p{draw.randrange(PLAYERS)}",
            time,
            draw.randrange(FRAMED_TYPES),
        )


def send_studio(settings: Settings, clusters: Mapping[str, StackState], proto: Path, records: int, seed: int) -> Sent:
    """Send events to both clusters; returns what was sent. TransientError: a record was not delivered.

    `settings`: those of the example; `clusters`: name -> its servers; `proto`: `studio.proto`.
    """
    makers = _makers(settings, clusters["live"], proto)
    writers: dict[str, KafkaWriter] = {}
    for topic, cluster in CLUSTERS.items():
        of_topic = {"kafka_bootstrap_servers": clusters[cluster].kafka_bootstrap_servers, "kafka_topic": topic}
        settings_of_topic = settings.model_copy(update=of_topic)
        ensure_topic(settings_of_topic, PARTITIONS)
        writers[topic] = KafkaWriter(settings_of_topic)
    sent = Sent()
    draw = Random(seed)  # noqa: S311 - sample data
    for event in events(records, seed):
        writer = writers[event.topic]
        value = makers[event.topic](event)
        headers = {} if event.topic == "chess.telemetry" else {"game": event.name}
        times = 2 if draw.random() < TWICE_SHARE else 1
        for _ in range(times):
            writer.write(value, None, headers)
        sent.records[event.topic] += times
        sent.twice[event.topic] += times - 1
        sent.count(event)
        if draw.random() < GARBAGE_SHARE:
            writer.write(GARBAGE, None, headers)
            sent.records[event.topic] += 1
            sent.garbage[event.topic] += 1
    for writer in writers.values():
        writer.flush()
    return sent


def _makers(settings: Settings, live: StackState, proto: Path) -> Mapping[str, Callable[[StudioEvent], bytes]]:
    """Topic -> how its values are made of events."""
    text = proto.read_text("utf-8")
    classes = _classes(text, proto.name)
    registry = registry_client(settings.model_copy(update={"schema_registry_url": live.schema_registry_url}))
    schema_id = registry.register_schema("events-value", Schema(text, "PROTOBUF"))
    serializers = [
        ProtobufSerializer(
            made, registry, {"auto.register.schemas": False, "schema.id.serializer": framer(schema_id, [number])}
        )
        for number, made in enumerate(classes[:FRAMED_TYPES])
    ]
    session = next(made for made in classes if made.DESCRIPTOR.full_name == SESSION)

    def framed(event: StudioEvent) -> bytes:
        message = cast(Callable[..., Message], classes[event.kind])(
            event_id=event.event_id, player_id=event.player, happened_at=event.time, app_version="3.1"
        )
        return cast(bytes, serializers[event.kind](message, None))

    def bare(event: StudioEvent) -> bytes:
        message = cast(Callable[..., Message], session)(
            event_id=event.event_id, player_id=event.player, started=int(event.time.timestamp()), seconds=event.kind * 10
        )
        return message.SerializeToString()

    return {"events": framed, "chess.telemetry": _json, "sessions": bare}


def _json(event: StudioEvent) -> bytes:
    milliseconds = int(event.time.timestamp()) * 1000
    kind = ("move", "resign", "rematch")[event.kind % 3]
    values: dict[str, object] = {"event_id": event.event_id, "event": kind, "ts": milliseconds, "player": {"id": event.player}}
    if kind == "move":
        values["move"] = {"from": "e2", "to": "e4", "clock": 300 - event.kind / 2}
    return json.dumps(values).encode()


def _classes(text: str, name: str) -> Sequence[type[Message]]:
    """Python's classes of the messages of a `.proto` text, in their order."""
    pool = DescriptorPool()
    files = compile_text(text, name).file
    for file in files:
        pool.Add(file)
    package = files[-1].package
    return [GetMessageClass(pool.FindMessageTypeByName(f"{package}.{m.name}")) for m in files[-1].message_type]
