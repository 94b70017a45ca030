"""What the producer's tests share: an encoder without a registry, and a recount from nothing but bytes."""

import struct
from datetime import UTC

from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.message import DecodeError

from game_events.plugins.local.producer.messages import BUILT_IN
from game_events.plugins.local.producer.produce import EventEncoder

#: Like a registry's: not the version numbers.
SCHEMA_IDS = {version: 100 + 7 * version for version in range(1, 11)}
VERSION_OF = {schema_id: version for version, schema_id in SCHEMA_IDS.items()}


def encoder():
    """An encoder as after registration."""
    return EventEncoder(SCHEMA_IDS, SchemaRegistryClient.new_client({"url": "mock://encoder"}))


def values(simulation):
    """The values of all records, in order."""
    encode = encoder()
    return [encode.record(record) for record in simulation.records()]


def decode(value):
    """(version, message) of a record's value, or what is wrong with it."""
    if value == b"":
        return "empty"
    if value[:1] == b"{":
        return "unframed_json"
    if value[0] != 0:
        return "wrong_magic"
    (schema_id,) = struct.unpack(">I", value[1:5])
    if schema_id not in VERSION_OF:
        return "unknown_schema"
    assert value[5] == 0, "message index [0]"
    version = VERSION_OF[schema_id]
    try:
        return version, BUILT_IN.message_class(version).FromString(value[6:])
    except DecodeError:
        return "truncated"


def recount(all_values):
    """(records per game and version, truth per game and gamer, poison) from bytes alone."""
    records, truth, poison = {}, {}, {}
    for value in all_values:
        found = decode(value)
        if isinstance(found, str):
            poison[found] = poison.get(found, 0) + 1
            continue
        version, message = found
        by_version = records.setdefault(message.game_name, {})
        by_version[version] = by_version.get(version, 0) + 1
        at = message.event_timestamp.ToDatetime(tzinfo=UTC)
        truth.setdefault(message.game_name, {}).setdefault(message.gamer_id, []).append(at)
    return (
        records,
        {game: {g: (len(times), min(times), max(times)) for g, times in gamers.items()} for game, gamers in truth.items()},
        poison,
    )


def assert_true(manifest, all_values):
    """The manifest says what the bytes say."""
    records, truth, poison = recount(all_values)
    told = {
        game: {gamer: (t.session_count, t.min_timestamp, t.max_timestamp) for gamer, t in gamers.items()}
        for game, gamers in manifest.truth.items()
    }
    assert manifest.records == records
    assert told == truth
    assert manifest.poison == poison
    assert manifest.records_total == len(all_values)
    assert manifest.decodable == len(all_values) - sum(poison.values())
