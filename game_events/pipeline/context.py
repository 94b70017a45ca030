"""The parts of a pipeline: settings, tables, source, schemas, Spark when it is needed, and the filters of plug-ins."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.config.definitions.computed import Definitions
from game_events.config.definitions.settings import definitions_of
from game_events.config.extensions import Extensions, extensions_of
from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.settings import Settings
from game_events.config.sources.several import settings_of_each
from game_events.decoding.columns import ColumnMap, ValueRules, kept_columns
from game_events.decoding.unframed.topics import TopicRules
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import erasures
from game_events.lakehouse.data.columns import QUARANTINE_COLUMNS, column_map, is_sourced, own_columns
from game_events.lakehouse.system_tables import ProgressTable
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, Table, refuse_other_layout
from game_events.pipeline.offsets import refuse_twice, topic_id_read
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.plugin import installed, parts
from game_events.rules import Rule, all_rules
from game_events.schema_registry import SchemaRegistry
from game_events.sources.factory import class_of
from game_events.sources.source import Source, SourceContext, SourceSnapshot
from game_events.workers.decode import RecordFilter

#: Seconds within which the source answers a pipeline that only reads: a run, which waits longer, follows.
SNAPSHOT_S = 5.0
_progress = logging.getLogger(PROGRESS_LOGGER)


def note(pipeline: Pipeline, why: str) -> str:
    """A unique note for `progress`: a run removes only notes that it has read."""
    return f"{why} (run {pipeline.run_id}, {time.time_ns()})"


def no_spark() -> SparkSession:
    """The `get_spark` of a pipeline that needs no session."""
    raise AssertionError("this is done without Spark")


@dataclass(frozen=True)
class Pipeline:
    """One pipeline's parts, each made at its first use.

    Attributes:
        get_spark: gives the session; only the Dagster resource (or a test's fixture) makes one.
        run_id: Dagster's run id where there is one.
        registered: tables that are known to be in the catalog.
        tables: tables that this process has opened, for its next step or cycle.
        read_only: whatever would change a table raises ReadOnlyError.
        quiet: progress is logged at DEBUG: a loop would log the same each second.
    """

    settings: Settings
    get_spark: Callable[[], SparkSession]
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    registered: set[str] = field(default_factory=set, compare=False, repr=False)
    tables: TablePool = field(default_factory=TablePool, compare=False, repr=False)
    quiet: bool = False
    read_only: bool = False

    def on_progress(self, message: str) -> None:
        """Log a message about the current step."""
        _progress.log(logging.DEBUG if self.quiet else logging.INFO, message)

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.get_spark()

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Rules for rows of silver and gold: those of the settings, then those of the modules named there.

        Raises:
            ConfigurationError: a module's list has something else, or a layer has two rules of one name.
        """
        return all_rules(self.settings.rules, self.extensions.rules)

    @cached_property
    def lakehouse(self) -> Lakehouse:
        """All tables.

        Raises:
            ConfigurationError: silver has another layout than the settings, and this pipeline may write to it.
        """
        found = Lakehouse.of(self.settings, read_only=self.read_only)
        if not self.read_only:
            refuse_other_layout(found)
        return found

    @cached_property
    def bronze(self) -> Table:
        """`bronze_events`."""
        return self.lakehouse.table(BRONZE)

    @cached_property
    def quarantine(self) -> Table:
        """`quarantine_events`."""
        return self.lakehouse.table(QUARANTINE)

    def open_bronze(self) -> DeltaTable | None:
        """The newest version of bronze, opened once for all readers (`TablePool`)."""
        return self.tables.open(self.bronze)

    def open_quarantine(self) -> DeltaTable | None:
        """The newest version of quarantine, likewise."""
        return self.tables.open(self.quarantine)

    def column_map(self, bronze: DeltaTable) -> ColumnMap:
        """Where fields land in a version of bronze, for new rows: with the names of sources if there are several."""
        columns = column_map(bronze)
        return replace(columns, sourced=True) if self.settings.sources else columns

    def quarantine_columns(self, quarantine: DeltaTable | None) -> pa.Schema:
        """The columns of a version of quarantine, likewise."""
        return own_columns(QUARANTINE_COLUMNS, sourced=bool(self.settings.sources) or is_sourced(quarantine))

    @cached_property
    def source(self) -> Source:
        """The source of bronze's records."""
        context = SourceContext(
            self.settings,
            self.lakehouse,
            self.run_id,
            timeout_s=SNAPSHOT_S if self.read_only else None,
            id_read=lambda topic, kind: topic_id_read(self.open_bronze(), topic, kind),
            refuse_twice=lambda archive, ends: refuse_twice(self.open_bronze(), self.open_quarantine(), archive, ends),
        )
        return class_of(self.settings)(context)

    def source_snapshot(self) -> SourceSnapshot:
        """A snapshot of the source; writes nothing."""
        return self.source.snapshot(take_in=False)

    @cached_property
    def catalog(self) -> SchemaCatalog:
        """Schemas by id."""
        settings = self.settings
        known = class_of(settings).lookup(settings, SchemaRegistry)
        kept = kept_columns(settings)
        values = ValueRules.of(settings)
        limits = {"max_columns": settings.max_columns, "max_unknown_ids": settings.max_unknown_ids}
        types = settings.message_types
        how = self.definitions
        catalog = SchemaCatalog(known, self.lakehouse, types, kept=kept, values=values, definitions=how, **limits)
        catalog.use_rules(TopicRules.of_settings(settings, settings_of_each(settings)))
        return catalog

    @cached_property
    def definitions(self) -> Definitions | None:
        """How game, player and time of a record are computed; None: they are decoded fields."""
        return definitions_of(self.settings)

    @cached_property
    def extensions(self) -> Extensions:
        """Declarations of the modules in the setting `extensions`."""
        return extensions_of(self.settings)

    @cached_property
    def progress(self) -> ProgressTable:
        """Progress of each layer."""
        return ProgressTable(self.lakehouse)


def record_filter(pipeline: Pipeline, bronze: DeltaTable) -> RecordFilter | None:
    """The filter of what is about to be stored; None: everything may be stored.

    `bronze`: the version with the `erasures` that the commit compares: each addition to what the filter refuses changes them.

    Raises:
        ConfigurationError: people were erased, and the plug-in that knows them is not installed; or as the plug-in says.
    """
    filters = [make(pipeline, bronze) for make in parts("record_filter")]
    if not filters and erasures(bronze):
        raise ConfigurationError(
            "people were erased from this lakehouse, and no installed plug-in keeps their records out: nothing was read. "
            "Install the plug-in governance of this project"
        )
    active = [each for each in filters if each is not None]
    if len(active) > 1:
        names = ", ".join(plugin.name for plugin in installed() if plugin.record_filter is not None)
        raise ConfigurationError(f"several plug-ins filter records, which only one may do: {names}")
    return active[0] if active else None


def erase_rejected(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Erase records of quarantine that a filter refused when they were decoded later.

    `records`: (topic id, partition, offset, batch) of each. Returns the number of erased rows.
    """
    return sum(erase(pipeline, records) for erase in parts("erase_rejected")) if records else 0
