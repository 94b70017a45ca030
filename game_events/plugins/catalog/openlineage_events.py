"""The result of a run as OpenLineage run events, and their delivery by the standard client.

There is a parent run, with the run's own id, and a child run for each table that changed or failed; its job has the table's
name, so that all ways to refresh a table (a run, an asset, continuous mode) are one job in lineage tools. Tables are datasets
with facets, named by the specification's conventions (OpenLineage 2-0-2). Guarantee: sending never raises, and takes no longer
than it may. Lost events are counted and reported, and not sent again.
"""

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from importlib.metadata import version
from urllib.parse import urlsplit

import pyspark
import requests
from openlineage.client import facet_v2 as ol
from openlineage.client.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.naming.dataset import LocalFileSystem
from openlineage.client.transport import http

from game_events.config.masking import without_secrets
from game_events.config.names import simple_call
from game_events.config.network import UNTRUSTED, within
from game_events.config.settings import Settings
from game_events.errors import without_quotes
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, Layer, gold_name, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import safe_error_text, types_of
from game_events.pipeline.gold.plan import expressions
from game_events.pipeline.reporting.result import RunResult, TableReport
from game_events.plugins.catalog.settings import CatalogSettings
from game_events.sources.factory import class_of

log = logging.getLogger(__name__)

ol.set_producer(f"urn:game-events:{version('game-events')}")

_NAMES = uuid.UUID("5d5b3c55-2f3a-5d0c-9a57-6f0b7a3e9a11")


@dataclass(frozen=True)
class LineageRun:
    """Makes the events of one run: of the job or asset `job`; `streaming` in continuous mode."""

    pipeline: Pipeline
    job: str
    streaming: bool = False

    @property
    def run_id(self) -> str:
        """The run id as a UUID, which the specification requires."""
        try:
            return str(uuid.UUID(self.pipeline.run_id))
        except ValueError:
            return str(uuid.uuid5(_NAMES, self.pipeline.run_id))

    def ended(self, moment: datetime, report: RunResult, error: BaseException | None, *, stopped: bool = False) -> RunEvent:
        """Event: the run succeeded, failed, or was cancelled."""
        text = f"{type(error).__name__}: {safe_error_text(error)}" if error is not None and not stopped else None
        if text is None and report.errors:
            text = f"{len(report.errors)} tables failed: {', '.join(t.table for t in report.errors[:10])}"
        if text is not None:
            return self.whole("FAIL", moment, self._error(text))
        return self.whole("ABORT" if stopped else "COMPLETE", moment)

    def tables(self, report: RunResult, since: datetime, until: datetime, part: int) -> Iterator[RunEvent]:
        """Start (at `since`) and end (`until`) of each table's run; events of the same `part` have the same ids."""
        settings = self.pipeline.settings
        of_run = (
            ol.parent_run.Run(self.run_id),
            ol.parent_run.Job(CatalogSettings.of(settings).openlineage_namespace, self.job),
        )
        parent: dict[str, ol.RunFacet] = {"parent": ol.parent_run.ParentRunFacet(*of_run)}
        for entry in report.tables:
            inputs = inputs_of(self.pipeline, entry, report)
            run_id = str(uuid.uuid5(_NAMES, f"{self.run_id}/{entry.table}/{part}"))
            about = f"Brings the table {entry.table} up to what it is made from (layer {entry.layer})"
            job = self._job(entry.table, "BATCH", "TASK", about)
            outputs = [output(self.pipeline, entry, inputs)] if entry.error is None else []
            state = RunState.COMPLETE if entry.error is None else RunState.FAIL
            run = Run(run_id, facets=dict(parent))
            yield RunEvent(eventType=RunState.START, eventTime=since.isoformat(), run=run, job=job, inputs=inputs)
            run = Run(run_id, facets=parent | self._error(entry.error and without_quotes(entry.error)))
            yield RunEvent(eventType=state, eventTime=until.isoformat(), run=run, job=job, inputs=inputs, outputs=outputs)

    def whole(self, state: str, moment: datetime, facets: dict[str, ol.RunFacet] | None = None) -> RunEvent:
        """Event of the run itself; `state`: name of a `RunState`."""
        engine = ol.processing_engine_run.ProcessingEngineRunFacet(pyspark.__version__, "Spark", version("game-events"))
        about = f"Brings the tables below {self.pipeline.lakehouse.root} up to their source"
        job = self._job(self.job, "STREAMING" if self.streaming else "BATCH", "JOB", about)
        run = Run(self.run_id, facets={"processing_engine": engine, **(facets or {})})
        return RunEvent(eventType=RunState[state], eventTime=moment.isoformat(), run=run, job=job)

    def _job(self, name: str, processing: str, kind: str, about: str) -> Job:
        facets: dict[str, ol.JobFacet] = {
            "jobType": ol.job_type_job.JobTypeJobFacet(processing, "GAME_EVENTS", kind),
            "documentation": ol.documentation_job.DocumentationJobFacet(about),
        }
        owners = self.pipeline.settings.owners
        if owners:
            facets["ownership"] = ol.ownership_job.OwnershipJobFacet([ol.ownership_job.Owner(owner) for owner in owners])
        return Job(CatalogSettings.of(self.pipeline.settings).openlineage_namespace, name, facets=facets)

    def _error(self, text: str | None) -> dict[str, ol.RunFacet]:
        if text is None:
            return {}
        masked = without_secrets(text, self.pipeline.settings)
        return {"errorMessage": ol.error_message_run.ErrorMessageRunFacet(masked, "python")}


#: Most inputs in the column lineage of the unified table: with thousands of games an event would have megabytes.
COLUMN_INPUTS = 50


def _place(uri: str) -> tuple[str, str]:
    """Namespace and name of a table's files: `file` and the path, or the store's bucket and the path in it."""
    parts = urlsplit(uri)
    if "://" not in uri:
        local = LocalFileSystem(uri)
        return local.get_namespace(), local.get_name()
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _source_input(settings: Settings, topic: str, report: RunResult) -> InputDataset:
    """Input that was read: a topic, a folder of files, or another pipeline's table."""
    namespace, name = _place(class_of(settings).address(settings, topic))
    rows = sum(end - start for partition, (start, end) in report.offsets.items() if partition.place == topic)
    statistics = ol.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
    source = ol.datasource_dataset.DatasourceDatasetFacet(namespace, namespace)
    return InputDataset(namespace, name, facets={"dataSource": source}, inputFacets={"inputStatistics": statistics})


def _table_input(lakehouse: Lakehouse, name: str) -> InputDataset:
    return InputDataset(*_place(lakehouse.table(name).uri), facets={"storage": _storage()})


def output(pipeline: Pipeline, entry: TableReport, inputs: list[InputDataset]) -> OutputDataset:
    """A table that changed, as output."""
    table = pipeline.lakehouse.table(pipeline.lakehouse.key(entry.table))
    namespace, name = _place(table.uri)
    root = pipeline.lakehouse.root
    facets: dict[str, ol.DatasetFacet] = {
        "schema": ol.schema_dataset.SchemaDatasetFacet(
            [
                ol.schema_dataset.SchemaDatasetFacetFields(column, kind, entry.comments.get(column), number)
                for number, (column, kind) in enumerate(entry.columns, start=1)
            ]
        ),
        "dataSource": ol.datasource_dataset.DatasourceDatasetFacet(namespace, root if "://" in root else f"file://{root}"),
        "storage": _storage(),
        "version": ol.dataset_version_dataset.DatasetVersionDatasetFacet(str(entry.version)),
    }
    if entry.new:
        changed = ol.lifecycle_state_change_dataset.LifecycleStateChange.CREATE
        facets["lifecycleStateChange"] = ol.lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(changed)
    if table.owners:
        facets["ownership"] = ol.ownership_dataset.OwnershipDatasetFacet([ol.ownership_dataset.Owner(o) for o in table.owners])
    if table.tags:
        tags = [ol.tags_dataset.TagsDatasetFacetFields(key, value, "USER") for key, value in table.tags]
        facets["tags"] = ol.tags_dataset.TagsDatasetFacet(tags)
    columns = _column_lineage(pipeline, entry, inputs)
    if columns:
        facets["columnLineage"] = ol.column_lineage_dataset.ColumnLineageDatasetFacet(columns)
    statistics = ol.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=entry.rows)
    return OutputDataset(namespace, name, facets=facets, outputFacets={"outputStatistics": statistics})


def inputs_of(pipeline: Pipeline, entry: TableReport, report: RunResult) -> list[InputDataset]:
    """Inputs of a table's new rows; of the unified table: gold tables that this run changed."""
    lakehouse = pipeline.lakehouse
    if entry.layer in ("bronze", "quarantine"):
        return _inputs_of_records(pipeline, entry, report)
    if entry.layer == Layer.SILVER:
        return [_table_input(lakehouse, BRONZE)]
    if entry.layer == Layer.UNIFIED:
        changed = [table.game for table in report.of(Layer.GOLD) if table.error is None and table.game is not None]
        return [_table_input(lakehouse, gold_name(game)) for game in changed]
    if entry.game is None:
        return []
    keys = [silver_name(entry.game), *map(lakehouse.key, types_of(report, entry.game))]
    return [_table_input(lakehouse, key) for key in keys]


def _inputs_of_records(pipeline: Pipeline, entry: TableReport, report: RunResult) -> list[InputDataset]:
    """Inputs of bronze or quarantine: topics; of bronze also quarantine, after a replay."""
    inputs = [_source_input(pipeline.settings, topic, report) for topic in report.topics]
    if entry.layer == "bronze" and report.replayed:
        inputs.append(_table_input(pipeline.lakehouse, QUARANTINE))
    return inputs


ColumnLineage = dict[str, ol.column_lineage_dataset.Fields]


def _column_lineage(pipeline: Pipeline, entry: TableReport, inputs: list[InputDataset]) -> ColumnLineage:
    """Input columns of each column; none for custom transformations and aggregates, where they are not known."""
    if len(inputs) > COLUMN_INPUTS:
        inputs = []
    if entry.layer == Layer.GOLD:
        known = _gold_lineage(pipeline.settings, inputs)
        return {name: known[name] for name, _ in entry.columns if name in known}
    return {name: _fields(inputs, name) for name in _unchanged(pipeline, entry, inputs)}


def _unchanged(pipeline: Pipeline, entry: TableReport, inputs: list[InputDataset]) -> list[str]:
    """Columns of silver, or of the unified table, that are the inputs' of the same name."""
    names = [name for name, _ in entry.columns]
    if entry.layer == Layer.UNIFIED:
        return [name for name in names if inputs and name != pipeline.settings.entity_column]
    if entry.layer != Layer.SILVER or any(t.applies_to(entry.game or "") for t in pipeline.extensions.transformations):
        return []
    return names


def _gold_lineage(settings: Settings, inputs: list[InputDataset]) -> ColumnLineage:
    """Input columns of gold's key, and of the aggregates that are one call."""
    key = settings.key_column
    known = {key: _fields(inputs, key)}
    for name, sql in (settings.gold_columns or expressions(settings)).items():
        function, argument = simple_call(sql) or ("", "")
        if function:
            # Rows are counted by their key.
            column = key if argument == "*" or argument.isdigit() else argument
            known[name] = _fields(inputs, column, "AGGREGATION", function.upper())
    return known


def _fields(
    inputs: list[InputDataset], column: str, subtype: str = "IDENTITY", description: str = ""
) -> ol.column_lineage_dataset.Fields:
    how = ol.column_lineage_dataset.Transformation(type="DIRECT", subtype=subtype, description=description, masking=False)
    return ol.column_lineage_dataset.Fields(
        [ol.column_lineage_dataset.InputField(i.namespace, i.name, column, [how]) for i in inputs]
    )


def _storage() -> ol.storage_dataset.StorageDatasetFacet:
    return ol.storage_dataset.StorageDatasetFacet("delta", "parquet")


#: Seconds for one event at most.
REQUEST_S = 3.0

#: Answers that reject one event: the next one may be accepted.
_ABOUT_THE_EVENT = frozenset({400, 413, 422})

#: A busy receiver is retried a few times, without its `Retry-After`.
_RETRY = {
    "total": 2, "connect": 1, "read": 0, "status": 2, "backoff_factor": 0.2, "respect_retry_after_header": False,
    "status_forcelist": [429, 500, 502, 503, 504], "allowed_methods": ["POST"],
}  # fmt: skip


def send(settings: Settings, events: list[RunEvent], within_s: float) -> tuple[int, int, str]:
    """Send events in order, until the time is over or the receiver is unavailable.

    Returns how many the receiver took, how many it did not take, and why the first was not taken.
    """
    sent: list[RunEvent] = []
    causes: list[str] = []
    # A receiver that answers byte by byte never reaches a time-out of the client.
    until = time.monotonic() + within_s
    try:
        within(within_s, lambda: _work(settings, events, sent, causes, until), "openlineage")
    except TimeoutError as error:
        causes += filter(None, [str(error)])
    taken = len(sent)  # once: the thread may still be at work
    why = causes[0] if causes else "it took too long" if taken < len(events) else ""
    lost = len(events) - taken
    if lost:
        log.warning("lineage_sent=%d lineage_lost=%d why=%r", taken, lost, why)
    return taken, lost, why


def _work(settings: Settings, events: list[RunEvent], sent: list[RunEvent], causes: list[str], until: float) -> None:
    client: OpenLineageClient | None = None
    try:
        client = _client(settings)
        for event in events:
            if time.monotonic() >= until:
                return
            try:
                client.emit(event)
                sent.append(event)
            except requests.HTTPError as error:
                causes.append(_cause(error))
                if error.response is None or error.response.status_code not in _ABOUT_THE_EVENT:
                    return
    except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
        causes.append(_cause(error))
    finally:
        if client is not None:
            client.close()


def _require_taken(answer: requests.Response, **_: object) -> None:
    """Raise for an answer that takes no event although it is no error: one that leads to another address is not followed."""
    if not HTTPStatus.OK <= answer.status_code < HTTPStatus.MULTIPLE_CHOICES:
        raise requests.HTTPError(response=answer)


def _client(settings: Settings) -> OpenLineageClient:
    session = requests.Session()
    session.hooks["response"].append(_require_taken)
    lineage = CatalogSettings.of(settings)
    key = lineage.openlineage_api_key
    ca = settings.tls_ca_file
    transport = http.HttpTransport(
        http.HttpConfig(
            url=f"{lineage.openlineage_url}/",
            session=session,
            endpoint=lineage.openlineage_endpoint.lstrip("/"),
            timeout=min(REQUEST_S, lineage.openlineage_timeout_s),
            auth=http.ApiKeyTokenProvider({"api_key": key.get_secret_value()}) if key is not None else http.TokenProvider({}),
            retry=_RETRY,
            ssl_context=http.HttpSslContextConfig(ca_cert_path=str(ca)) if ca is not None else None,
        )
    )
    # The git repository of the working directory is not the source of the job.
    return OpenLineageClient(transport=transport, config={"facets": {"source_code_location": {"disabled": True}}})


def _cause(error: Exception) -> str:
    """Cause without the address, which the client's own text repeats."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if UNTRUSTED in str(error):
        return "the receiver's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return type(error).__name__
