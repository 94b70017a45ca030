"""Asset keys, the partitions and what all assets share.

The keys are made from the setting `names`; the constants are those of its defaults.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import dagster as dg

from game_events.config.naming import Names
from game_events.config.settings import Settings
from game_events.lakehouse.layers import OWN_GOLD
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED

#: Metadata key of the run's whole report.
REPORT = "report"


def report_in(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run's report in the metadata of an event; empty if it has none."""
    value = (metadata or {}).get(REPORT)
    return dict(value.data) if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else {}


OpEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation | dg.Output[None]

JOB = "continuous"

#: Metadata keys of check results: the games that it failed for, and what it covers.
FAILED_GAMES, COVERS = "failed_games", "covers"


@dataclass(frozen=True)
class Keys:
    """Names of the assets of some settings; `catalog`: database that tables are registered in, if they are."""

    names: Names
    catalog: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The keys of some settings."""
        return cls(settings.names, settings.catalog)

    @property
    def bronze(self) -> dg.AssetKey:
        """`bronze_events`."""
        return dg.AssetKey([self.names.name_of(BRONZE)])

    @property
    def quarantine(self) -> dg.AssetKey:
        """`quarantine_events`."""
        return dg.AssetKey([self.names.name_of(QUARANTINE)])

    @property
    def silver(self) -> dg.AssetKey:
        """`silver_events`, partitioned."""
        return self._key(self.names.silver_asset)

    @property
    def gold(self) -> dg.AssetKey:
        """`gold_player_agg`, partitioned."""
        return self._key(self.names.gold_asset)

    @property
    def unified(self) -> dg.AssetKey:
        """`gold_unified_player_agg`."""
        return dg.AssetKey([self.names.name_of(UNIFIED)])

    @property
    def rest(self) -> dg.AssetKey:
        """`rest_export`: rows sent to an HTTP receiver."""
        return self._key("rest_export")

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition for each game; grows with the data, without a list in the settings."""
        return dg.DynamicPartitionsDefinition(name=self.names.asset(self.names.entities))

    @property
    def by_layer(self) -> dict[str, dg.AssetKey]:
        """Layer of a report's entry -> the asset that it materializes."""
        return {
            "bronze": self.bronze,
            "quarantine": self.quarantine,
            "silver": self.silver,
            "gold": self.gold,
            "unified": self.unified,
        }

    def layer(self, layer: str) -> dg.AssetKey:
        """The asset of a report's entry: an aggregate of one's own has `gold:{name}` for a layer."""
        known = self.by_layer
        return known[layer] if layer in known else self._key(f"gold_{layer.removeprefix(OWN_GOLD)}")

    def named(self, part: str) -> str:
        """Name of a job, op, sensor, schedule, pool or resource of this pipeline."""
        return self.names.asset(part)

    def table_name(self, table: str) -> str:
        """A table's name as its readers know it: with the catalog's database, where it is registered in one."""
        return f"{self.catalog}.{table}" if self.catalog else table

    def _key(self, name: str) -> dg.AssetKey:
        return dg.AssetKey([self.names.asset(name)])


DEFAULT = Keys(Names())
#: For assets of one's own beside those with default names (docs/reading.md).
GAMES, GOLD_KEY = DEFAULT.partitions, DEFAULT.gold

OWNERS = ["team:data-engineering"]
#: Names of the one asset, and the one of its subjects, for all topics of a pattern: only the broker knows them,
#: and a graph that has to ask it cannot be loaded while it is down.
BY_PATTERN = "topics_by_pattern"
SUBJECTS_BY_PATTERN = "subjects_by_pattern"


def source_key(settings: Settings, topic: str) -> dg.AssetKey:
    """The external asset of a topic that the settings name, or of all that a pattern does; of the files or table they name."""
    if settings.source == "files":
        return dg.AssetKey(["files", *_end(settings.source_name)])
    if settings.source_table is not None:
        # Another pipeline's table, by its lakehouse's name and its own.
        return dg.AssetKey(["delta", *_end(settings.source_table)])
    return dg.AssetKey(["kafka", topic if settings.kafka_topic_pattern is None else BY_PATTERN])


def _end(place: str) -> list[str]:
    """The last two parts of a path or URI."""
    return [_word(part) for part in place.partition("://")[2 if "://" in place else 0].split("/") if part][-2:]


def _word(part: str) -> str:
    """As Dagster accepts it: a key with another character would keep the whole project from loading."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", part)


def schema_key(settings: Settings, subject: str) -> dg.AssetKey:
    """The external asset of a subject; of all subjects of a pattern's topics."""
    return dg.AssetKey(["schema_registry", _word(subject) if settings.kafka_topic_pattern is None else SUBJECTS_BY_PATTERN])
