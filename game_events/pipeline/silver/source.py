"""The input of silver: a version of bronze, its columns, and the rules on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from game_events.errors import ConfigurationError, some_columns
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.event_columns import BRONZE_ONLY, column_map
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.routing import ColumnChoice
from game_events.pipeline.quality.judging import RuleColumns
from game_events.pipeline.quality.validation import require_valid
from game_events.pipeline.silver.transformations import transformed


@dataclass(frozen=True)
class SilverInput:
    """The input of silver: a version of bronze, the identity of its contents, and its last batch.

    `base`: bronze's columns that silver has, and that rules are evaluated on.
    """

    pipeline: Pipeline
    handle: DeltaTable
    bronze: BronzeIdentity
    batch: int
    base: pa.Schema

    @classmethod
    def of(cls, pipeline: Pipeline, handle: DeltaTable) -> SilverInput:
        """The input for a version of bronze.

        Raises:
            ConfigurationError: bronze has no column that names the game.
        """
        schema = pa.schema([f for f in pa.schema(handle.schema()) if f.name not in BRONZE_ONLY])
        batch = counter(handle, Txn.BATCH)
        if batch and row_count(handle) and pipeline.settings.entity_column not in schema.names:
            entity, noun = pipeline.settings.entity_column, pipeline.settings.names.entity
            raise ConfigurationError(
                f"set GAME_EVENTS_ENTITY_COLUMN to the top-level column that names the {noun}: bronze has no column "
                f"{entity!r}. It has {some_columns(schema.names, entity)}"
            )
        return cls(pipeline, handle, BronzeIdentity.of(handle), batch, schema)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of silver: `base`, unless transformations change them, which needs Spark.

        Raises:
            ExtensionError: a transformation cannot be applied.
        """
        if not self.pipeline.extensions.transformations:
            return self.base
        nothing = read_files(self.pipeline.spark, [], spark_schema(self.handle.schema())).select(*self.base.names)
        return self.transformed(nothing)[1]

    @cached_property
    def choice(self) -> ColumnChoice | None:
        """The columns that only some games' tables have."""
        settings = self.pipeline.settings
        always = (settings.entity_column, settings.key_column, settings.time_column)
        return ColumnChoice.of(self.schema, column_map(self.handle), always)

    def columns_with(self, sent: frozenset[str]) -> pa.Schema:
        """Columns of the table of a game with these of the optional columns; other names are ignored."""
        if self.choice is None:
            return self.schema
        chosen = sent.intersection(self.choice.together)
        if chosen not in self._chosen:
            self._chosen[chosen] = self.choice.chosen(self.schema, chosen)
        return self._chosen[chosen]

    @cached_property
    def _chosen(self) -> dict[frozenset[str], pa.Schema]:
        return {}

    def transformed(self, rows: DataFrame) -> tuple[DataFrame, pa.Schema]:
        """Rows with the columns of `base`, transformed, and the columns of the result."""
        entity = self.pipeline.settings.entity_column
        return transformed(rows, self.base, entity, self.pipeline.extensions.transformations)

    @property
    def columns(self) -> StructType:
        """`base` in Spark's types."""
        return StructType([f for f in spark_schema(self.handle.schema()).fields if f.name in self.base.names])

    @cached_property
    def rules(self) -> RuleColumns:
        """The rules for silver.

        Raises:
            ConfigurationError: a rule cannot be evaluated on these columns.
        """
        found = RuleColumns.of(self.pipeline.rules, "silver", self.pipeline.settings.entity_column)
        if found.rules:
            require_valid(self.pipeline.spark, found.rules, self.columns)
        return found
