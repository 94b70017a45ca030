"""Dagster's resources: the Spark session, the pipeline that uses it, and tables as parameters of assets (docs/extending.md).

A `Graph` is one pipeline in Dagster: its settings, and the names of its parts. Several pipelines may be in one code location,
or Dagster instance: their prefixes (`names` of the settings) are in the names of their assets, jobs, ops, sensors, schedules,
pools and resources.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Self, get_args, get_origin

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pydantic import PrivateAttr, PydanticDeprecatedSince20
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, SettingsSource
from game_events.config.type_names import of_type, type_name
from game_events.errors import ConfigurationError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.parts import Part, PartedTable
from game_events.lakehouse.storage import is_s3, store_errors_named
from game_events.lakehouse.tables import Lakehouse, Table, is_game, no_table
from game_events.orchestration.keys import Keys, UnresolvedAssetJobDefinition
from game_events.orchestration.runs import StepContext, errors_decide, lakehouse_tag, mark_process
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun
from game_events.sources.factory import unencrypted
from game_events.spark.connect import answers, close_session, is_closed, is_connect
from game_events.spark.session import new_session

log = logging.getLogger(__name__)

#: Makes the work of a run, which adds to the report.
Begin = Callable[[Pipeline, RunReport], TriggeredRun]


class SparkResource(LazyPySparkResource):
    """A Spark session made at first use, with this project's settings below those given here.

    The project's own settings are read in the run's process and never become Dagster configuration, where the UI would show
    them: `GAME_EVENTS_SPARK_CONF` may hold an object store's keys.
    """

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    def _init_session(self) -> None:
        """Make the session, once for each process; on a Connect server again if it was given back."""
        if self._spark_session is None or is_closed(self._spark_session):
            more = dict(flatten_dict(self.spark_config))  # type: ignore[no-untyped-call]
            self._spark_session = new_session(self.source.read(), more)

    def renew_if_lost(self) -> None:
        """What is done next gets a new session if the server does not know the one there is; no classic session is renewed."""
        session: SparkSession | None = self._spark_session
        if session is not None and is_connect(session) and not is_closed(session) and not answers(session):
            close_session(session)

    def release(self) -> None:
        """Give back a session on a Connect server: what a cancelled run left working there ends, too."""
        if self._spark_session is not None:
            close_session(self._spark_session)


class SharedRun:
    """What the steps of a run share: its work, with its report, and its entry in the event log, written once at its end.

    A step that is retried goes on with the same report.
    """

    def __init__(self, pipeline: Pipeline, name: str, attempt: int, begin: Begin) -> None:
        """Begin the entry, then the work; an error of that is in the entry."""
        self.closed = False
        self.done: set[str] = set()
        self._entry = ExitStack()
        report = RunReport()
        self._entry.enter_context(recorded(pipeline, report, name, attempt))
        try:
            self.work = begin(pipeline, report)
        except BaseException as error:
            self.close(error)
            raise

    def execute(self, name: str) -> None:
        """Execute a step, unless this run has."""
        if name not in self.done:
            self.work.steps[name]()
            self.done.add(name)

    def close(self, error: BaseException | None = None) -> None:
        """Write the entry."""
        self.closed = True
        try:
            self._entry.__exit__(type(error) if error is not None else None, error, None)
        except BaseException as raised:
            if raised is not error:
                raise


class LakehouseResource(dg.ConfigurableResource[Any]):
    """The pipeline over one lakehouse; its settings are those of the graph, or what environment, `.env` and YAML say now."""

    spark: dg.ResourceDependency[SparkResource]
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    _open: SharedRun | None = PrivateAttr(default=None)
    _opened: int = PrivateAttr(default=0)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Every run that works on the tables says which process does, and on which lakehouse."""
        settings = self.source.read()
        mark_process(context)
        if context.instance is not None and context.run is not None:
            context.instance.add_run_tags(context.run.run_id, lakehouse_tag(settings))
        for said in unencrypted(settings):
            log.warning("not_encrypted=%r", said)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """What the steps shared is ended, if no step has; a server that other runs use remembers nothing of this one."""
        try:
            if self._open is not None and not self._open.closed:
                self._open.close(dg.DagsterExecutionInterruptedError("the run ended between two steps"))
        finally:
            self.spark.release()

    def shared(self, run_id: str, name: str, begin: Begin) -> SharedRun:
        """What the steps of a run share, made at first use, and again after it was closed.

        Dagster makes one resource for all steps of a run that one process executes.
        """
        if self._open is None or self._open.closed:
            self._open = SharedRun(self.pipeline(run_id), name, self._opened, begin)
            self._opened += 1
        return self._open

    @property
    def last(self) -> SharedRun:
        """What the steps shared last, closed or not."""
        assert self._open is not None, "no step has shared anything"  # noqa: S101 - a mistake in a job
        return self._open

    def pipeline(self, run_id: str) -> Pipeline:
        """The parts of the pipeline for one step; Spark starts when the first of them needs it."""
        self.spark.renew_if_lost()
        return Pipeline(self.source.read(), lambda: self.spark.spark_session, run_id)

    @contextmanager
    def recorded(self, context: StepContext, name: str, *, observed: bool = True) -> Iterator[tuple[Pipeline, RunReport]]:
        """The pipeline and the report of one step, recorded in the event log; errors inside end the step (`errors_decide`)."""
        pipeline = self.pipeline(context.run.run_id)
        report = RunReport()
        with (
            errors_decide(context, pipeline.settings),
            recorded(pipeline, report, name, context.retry_number, observed=observed),
        ):
            yield pipeline, report


LAKEHOUSE = "lakehouse"
#: Input of an op that only waits for another one.
START = "start"


@dataclass(frozen=True)
class Graph:
    """What all parts of a pipeline's definitions are made from.

    Attributes:
        source: where a run or a tick reads the settings; `settings`: those at the time when the definitions are loaded.
        keys: names of the parts.
    """

    source: SettingsSource
    settings: Settings = field(repr=False)
    keys: Keys

    @classmethod
    def of(cls, settings: Settings | None = None) -> Self:
        """The graph of some settings; of those of the environment, which each run and tick reads again.

        Raises:
            ConfigurationError: they are invalid.
        """
        source = SettingsSource(settings)
        settings_now = source.read()
        return cls(source, settings_now, Keys.of(settings_now))

    @property
    def tags(self) -> dict[str, str]:
        """The tag of all runs of the pipeline's jobs."""
        return lakehouse_tag(self.settings)

    @property
    def resource(self) -> str:
        """Key of the resource with the pipeline."""
        return self.keys.named(LAKEHOUSE)

    @cached_property
    def resources(self) -> dict[str, dg.ConfigurableResource[Any]]:
        """The pipeline and the Spark session, for its jobs and for assets of one's own in the same code location."""
        return {self.resource: LakehouseResource(spark=self.spark, source=self.source), self.keys.named("spark"): self.spark}

    @cached_property
    def spark(self) -> SparkResource:
        """The resource of the Spark session."""
        return SparkResource(source=self.source)

    def lakehouse(self, context: StepContext) -> LakehouseResource:
        """The resource, in a step."""
        resource: LakehouseResource = getattr(context.resources, self.resource)
        return resource

    def op(
        self, name: str, description: str, pool: str | None, *, after: bool = False
    ) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
        """Decorator of an op without outputs that uses the resource, in a pool of the pipeline; `after`: another op."""
        return dg.op(
            name=self.keys.named(name),
            description=description,
            ins={START: dg.In(dg.Nothing)} if after else None,
            out=dg.Out(dg.Nothing),
            pool=None if pool is None else self.keys.named(pool),
            required_resource_keys={self.resource},
        )

    def job(
        self,
        name: str,
        description: str,
        *ops: dg.OpDefinition,
        tags: Mapping[str, str] | None = None,
        executor: dg.ExecutorDefinition = dg.in_process_executor,
    ) -> dg.JobDefinition:
        """A job of ops one after the other, in one process: the default executor would start a JVM for each of them."""
        after = {later.name: {START: dg.DependencyDefinition(earlier.name)} for earlier, later in pairwise(ops)}
        graph = dg.GraphDefinition(name=self.keys.named(name), node_defs=list(ops), dependencies=after)
        tags = self.tags | dict(tags or {})
        # With its resources: a sensor of a job that gets them later is copied, with a warning of Dagster's about the copy.
        return graph.to_job(description=description, executor_def=executor, tags=tags, resource_defs=self.resources)

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """Whether sensors run from the beginning."""
        return dg.DefaultSensorStatus.RUNNING if self.settings.automation else dg.DefaultSensorStatus.STOPPED

    def schedule(
        self, name: str, job: dg.JobDefinition | UnresolvedAssetJobDefinition, cron: str, description: str
    ) -> dg.ScheduleDefinition:
        """A schedule of a job, which runs from the beginning unless the settings say that nothing does."""
        return dg.ScheduleDefinition(
            name=self.keys.named(name),
            job=job,
            cron_schedule=cron,
            execution_timezone="UTC",
            description=description,
            default_status=dg.DefaultScheduleStatus.RUNNING if self.settings.automation else dg.DefaultScheduleStatus.STOPPED,
        )


class TableLoader(dg.ConfigurableIOManager):
    """Loads inputs that are tables of this graph, each as its newest version.

    A partition of silver or gold is one table. An input of several partitions is annotated `dict[str, ...]`: games with a table
    -> what the table has. Places and credentials are read in the run's process and are no Dagster configuration.
    """

    spark: dg.ResourceDependency[SparkResource]
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    def load_input(self, context: dg.InputContext) -> object:
        """The table of the input's asset and partition.

        Raises:
            ConfigurationError: there is no such table, or nothing of this kind can be made of it.
        """
        settings = self.source.read()
        kind = context.dagster_type.typing_type
        lakehouse = Lakehouse.of(settings)
        keys = Keys.of(settings)
        by_game = get_origin(kind) is dict
        games = _games_of_input(context, by_game=by_game)
        tables = {game: table_of(lakehouse, keys, context.asset_key, game) for game in games}
        handles = _opened(settings, tables)
        if by_game:
            of_game = get_args(kind)[1]
            return {game: self._as(of_game, tables[game], handle) for game, handle in handles.items() if handle is not None}
        table = tables[games[0]]
        handle = handles[games[0]]
        if handle is None:
            raise no_table(lakehouse, table.name, [lakehouse.table(name).name for name in lakehouse.names()])
        return self._as(kind, table, handle)

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:  # noqa: ARG002 - Dagster's signature
        """Refused: the pipeline alone writes its tables."""
        raise ConfigurationError("this resource reads the pipeline's tables; give it to inputs (`input_manager_key`) only")

    def _as(self, kind: Any, table: Table, handle: DeltaTable) -> object:  # noqa: ANN401 - what a parameter is annotated with
        """A table as an annotation says; without one as a `DeltaTable`, of which nothing is read yet."""
        package = getattr(kind, "__module__", "").partition(".")[0]
        name = getattr(kind, "__name__", "")
        is_part = table.part is not None
        match package, name:
            case ("typing", "Any") | ("deltalake", "DeltaTable") if not is_part:
                return handle
            case ("pyarrow", "Table"):
                return read_arrow(table, handle)
            case ("pandas", "DataFrame"):
                return read_arrow(table, handle).to_pandas()
            case ("polars", "DataFrame"):
                return _scanned(table, handle).collect()
            case ("polars", "LazyFrame"):
                return _scanned(table, handle)
            case ("pyspark", "DataFrame"):
                rows = self.spark.spark_session.read.format("delta").load(table.uri)
                return rows.where(rows[f"`{table.by}`"] == table.part) if is_part else rows
        handles = "" if is_part else "deltalake.DeltaTable, "
        what = f"{table.part}'s part of {table.name}" if is_part else f"table {table.name}"
        raise ConfigurationError(
            f"{what} cannot be loaded as {package}.{name}: annotate the parameter with {handles}"
            "pyarrow.Table, polars.DataFrame or LazyFrame, pandas.DataFrame, or pyspark.sql.DataFrame"
        )


def _games_of_input(context: dg.InputContext, *, by_game: bool) -> list[str | None]:
    """The games of the input's partitions, exactly one unless it is loaded by game; None: the asset has no partitions."""
    games: list[str | None] = [*context.asset_partition_keys] if context.has_asset_partitions else [None]
    if by_game:
        return [game for game in games if game is None or is_game(game)]
    if len(games) != 1:
        raise ConfigurationError(f"input {context.name} is {len(games)} tables: annotate it with dict[str, ...]")
    return games


def _scanned(table: Table, handle: DeltaTable) -> Any:  # noqa: ANN401 - a LazyFrame of Polars
    # No dependency of this project's: whoever annotates with it has imported it.
    polars = sys.modules["polars"]
    rows = polars.scan_delta(handle.whole if isinstance(handle, Part) else handle)
    return rows if table.part is None else rows.filter(polars.col(table.by) == table.part)


def _opened(settings: Settings, tables: Mapping[str | None, Table]) -> dict[str | None, DeltaTable | None]:
    """Partition -> handle of its table, or of its part of one, which is opened once for all; None: there is none."""
    handles: dict[str | None, DeltaTable | None] = {}
    wholes: dict[str, DeltaTable | None] = {}
    for game, table in tables.items():
        if table.part is None:
            handles[game] = open_table(settings, table)
            continue
        if table.uri not in wholes:
            wholes[table.uri] = table.whole.open_to_read()
        whole = wholes[table.uri]
        handles[game] = whole.part(table.part) if isinstance(whole, PartedTable) else None
    return handles


def table_of(lakehouse: Lakehouse, keys: Keys, asset: dg.AssetKey, game: str | None) -> Table:
    """The table of an asset, or of its partition.

    Raises:
        ConfigurationError: no game may have the partition's name.
    """
    name = asset.path[-1]
    if game is None:
        return lakehouse.table(lakehouse.key(name))
    if asset == keys.silver_types:
        of_game, _, message_type = game.partition("/")
        if not is_game(of_game) or type_name(message_type) != message_type:
            raise ConfigurationError(f"{game!r} is a partition of {name} with a name that no table may have: delete it")
        return lakehouse.silver(of_type(of_game, message_type))
    if not is_game(game):
        # Its path could lead to any other table.
        raise ConfigurationError(f"{game!r} is a partition of {name} with a name that no game may have: delete it")
    if asset == keys.silver:
        return lakehouse.silver(game)
    return lakehouse.gold(game, PLAYER_AGG if asset == keys.gold else name.removeprefix(keys.named("gold_")))


def open_table(settings: Settings, table: Table) -> DeltaTable | None:
    """A table by Dagster's resource for Delta tables, with the store of the settings; None: there is no such table."""
    with warnings.catch_warnings():
        # dagster-deltalake 0.29 uses a method that pydantic has given another name.
        warnings.filterwarnings("ignore", "The `dict` method is deprecated", PydanticDeprecatedSince20)
        # A third of a second of every start, for who uses it only.
        from dagster_deltalake import DeltaTableResource, LocalConfig, S3Config  # noqa: PLC0415
        from dagster_deltalake.config import ClientConfig  # noqa: PLC0415

        # Credentials, and all that concerns other stores, delta-rs reads from the environment.
        store: S3Config | LocalConfig = LocalConfig()
        client = ClientConfig()
        options = table.options
        if is_s3(settings.lakehouse):
            store = S3Config(
                region=options.get("AWS_REGION"),
                endpoint=options.get("AWS_ENDPOINT_URL"),
                virtual_hosted_style_request=options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
            )
            client = ClientConfig(allow_http="AWS_ALLOW_HTTP" in options)
        try:
            with store_errors_named(table.uri):
                return table.readable(DeltaTableResource(url=table.uri, storage_options=store, client_options=client).load())
        except TableNotFoundError:
            return None
