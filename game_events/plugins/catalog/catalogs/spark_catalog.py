"""Spark's catalogs, by SQL: a Hive metastore, or another one that Spark is configured with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from game_events.errors import ConfigurationError, first_line
from game_events.lakehouse.tables import BRONZE, Table
from game_events.plugins.catalog.catalogs.places import Registered, literal, of_another, quoted, same_place

IMPLEMENTATION = "spark.sql.catalogImplementation"

#: A view's property: the digest of the query of which it was made.
QUERY = "game_events.query"


class SparkCatalog:
    """A database of a catalog of the session.

    A database without a catalog's name is one of Spark's own catalog, which keeps it in a Hive metastore.
    """

    def __init__(self, spark: SparkSession, database: str) -> None:
        self._spark = spark
        self._database = ".".join(map(quoted, database.split(".")))
        self.name = database

    def registered(self, ours: Mapping[str, Table]) -> Registered:
        """Names of all tables and views; the database is made if there is none.

        Raises:
            ConfigurationError: bronze is that of another lakehouse, or the catalog ends with the session.
        """
        self._require_lasting()
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {self._database}")
        rows = self._spark.sql(f"SHOW TABLES IN {self._database}").collect()
        names = {row["tableName"] for row in rows if not row["isTemporary"]}
        # A listing does not say where tables are: bronze stands for all.
        for table in [table for name, table in ours.items() if table.key == BRONZE and name in names]:
            described = self._spark.sql(f"DESCRIBE DETAIL {self.of_table(table.name)}").select("location").collect()
            if not same_place(described[0]["location"], table.uri):
                raise of_another(self.name, table.name, described[0]["location"], table)
        return Registered(names, {})

    def register(self, table: Table) -> None:
        """Register a table, unless one of its name is there."""
        place = literal(table.uri)
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self.of_table(table.name)} USING delta LOCATION {place}")

    def make_view(self, name: str, query: str) -> bool:
        """Make a view, or replace the one that was made of another query; False: it is there.

        Raises:
            ConfigurationError: the catalog has no views, or a table or a view that was not made here has that name.
        """
        view = self.of_table(name)
        made_of = hashlib.sha256(query.encode()).hexdigest()
        if self._spark.catalog.tableExists(view):
            properties = {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {view}").collect()}
            if QUERY not in properties:
                raise ConfigurationError(f"{self.name}.{name} of the catalog is no view that was made for a message type")
            if properties[QUERY] == made_of:
                return False
        try:
            self._spark.sql(f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ({literal(QUERY)} = {literal(made_of)}) AS {query}")
        except PySparkException as error:
            raise ConfigurationError(f"the catalog {self.name} did not take the view {name}: {first_line(error)}") from error
        return True

    def close(self) -> None:
        """Nothing: the session is others', too."""

    def of_table(self, name: str) -> str:
        """The name of a table or view in a statement."""
        return f"{self._database}.{quoted(name)}"

    def _require_lasting(self) -> None:
        conf = self._spark.conf
        # Spark's own catalog, below Delta's: another one may keep its tables itself.
        of_spark = str(conf.get("spark.sql.catalog.spark_catalog", "")).endswith(".DeltaCatalog")
        if "." not in self.name and conf.get(IMPLEMENTATION) == "in-memory" and of_spark:
            raise ConfigurationError(
                f"the session's catalog is in memory and ends with it: set {IMPLEMENTATION} to hive (a metastore) where Spark "
                "is started, or name another catalog (GAME_EVENTS_CATALOG=catalog.database)"
            )
