"""What a chaos run is told: sources, messages, rules, which rows are sent twice, and definitions that change in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from game_events.plugins.local.producer.messages import ProtoVersions

#: Source -> its topic; both are on one broker, with one registry.
SOURCES = {"eu": "chaos_events", "us": "chaos_sessions"}
#: Message type -> the sources with records of it, and a field that only it has.
MESSAGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Move": (("eu",), "string piece"),
    "Trade": (("eu", "us"), "double price"),
    "Session": (("us",), "int32 seconds"),
}
PACKAGE = "chaos"
#: The type with tables of its own, and what these are called.
TYPE_WITH_TABLES, ITS_TABLES = f"{PACKAGE}.Trade", "trade"
_PROTO = """
syntax = "proto3";
package {package};
import "google/protobuf/timestamp.proto";
message {name} {{
  string game_name = 1;
  string gamer_id = 2;
  google.protobuf.Timestamp event_timestamp = 3;
  string device_id = 4;
  string event_id = 5;
  {field} = 6;
}}
"""

REJECTED_DEVICE, DROPPED_DEVICE = "device_3", "device_7"
RULES = [
    {"name": "not_device_3", "sql": f"device_id <> '{REJECTED_DEVICE}'", "action": "quarantine"},
    {"name": "not_device_7", "sql": f"device_id <> '{DROPPED_DEVICE}'", "action": "drop"},
]
#: One event's records have one time: any window would do.
DEDUPLICATE = [{"key": ["event_id"], "window_h": 48}]

GAMES = ("rummy", "spades", "uno")
#: Names that are no legal ones: of another game by an alias, which changes; of none, until there is one.
OTHER_NAMES = ("Rummy Gold", "com.studio.uno")


@dataclass(frozen=True)
class Definitions:
    """How a row's game and time follow from its record.

    Attributes:
        aliases: name -> game.
        time: the expression.
        later_us: how much later than in the record that is.
    """

    aliases: Mapping[str, str]
    time: str
    later_us: int

    def settings(self) -> dict[str, Any]:
        """The settings that say so."""
        return {"entity_aliases": dict(self.aliases), "time": self.time}

    def name_sql(self) -> str:
        """What bronze has as the game of a record with this `name`, as DuckDB's SQL."""
        cases = " ".join(f"WHEN '{name}' THEN '{game}'" for name, game in self.aliases.items())
        return f"CASE name {cases} ELSE name END"

    def game_sql(self) -> str:
        """Its game; NULL: the record is of none."""
        return f"CASE WHEN regexp_full_match({self.name_sql()}, '[a-z0-9_]+') THEN {self.name_sql()} END"


AT_FIRST = Definitions({"Rummy Gold": "rummy"}, "event_timestamp", 0)
CHANGED = Definitions(
    {"Rummy Gold": "spades", "com.studio.uno": "uno", "newcomer_00": "rummy"},
    "event_timestamp + INTERVAL 1 HOUR",
    3_600_000_000,
)


def settings_of(definitions: Definitions) -> dict[str, Any]:
    """All that the pipeline is told about what comes."""
    return {
        "sources": {source: {"kafka_topic": topic} for source, topic in SOURCES.items()},
        "rules": RULES,
        "deduplicate": DEDUPLICATE,
        "silver_per": "entity_and_type",
        "silver_types": [TYPE_WITH_TABLES],
        **definitions.settings(),
    }


@cache
def message(name: str) -> ProtoVersions:
    """A message type in all its versions."""
    return ProtoVersions(proto_text(name), f"{name}.proto")


def proto_text(name: str) -> str:
    """The file of a message type."""
    return _PROTO.format(package=PACKAGE, name=name, field=MESSAGES[name][1])
