"""The result of a run as OpenLineage run events: a parent run, and a child run for each table that changed or failed.

The parent run has the run's own id. The job of a child run has the table's name, so that all ways to refresh a table (a run, an
asset, continuous mode) are one job in lineage tools.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

import pyspark
from openlineage.client import facet_v2 as ol
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

from game_events.config.masking import without_secrets
from game_events.errors import without_quotes
from game_events.pipeline.context import Pipeline
from game_events.pipeline.lineage.facets import inputs_of, output
from game_events.pipeline.reporting.redaction import safe_error_text
from game_events.pipeline.reporting.result import RunResult

ol.set_producer(f"urn:game-events:{version('game-events')}")
_NAMES = uuid.UUID("5d5b3c55-2f3a-5d0c-9a57-6f0b7a3e9a11")


@dataclass(frozen=True)
class LineageRun:
    """Makes the events of one run: of the job or asset `job`; `streaming` in continuous mode."""

    pipeline: Pipeline
    job: str
    began: datetime
    streaming: bool = False

    @property
    def run_id(self) -> str:
        """The run id as a UUID, which the specification requires."""
        try:
            return str(uuid.UUID(self.pipeline.run_id))
        except ValueError:
            return str(uuid.uuid5(_NAMES, self.pipeline.run_id))

    def started(self) -> RunEvent:
        """Event: the run started."""
        return self._whole(RunState.START, self.began, {})

    def running(self, at: datetime) -> RunEvent:
        """Event: the run is still running."""
        return self._whole(RunState.RUNNING, at, {})

    def ended(self, at: datetime, report: RunResult, error: BaseException | None, *, stopped: bool = False) -> RunEvent:
        """Event: the run succeeded, failed, or was cancelled."""
        text = f"{type(error).__name__}: {safe_error_text(error)}" if error is not None and not stopped else None
        if text is None and report.errors:
            text = f"{len(report.errors)} tables failed: {', '.join(t.table for t in report.errors[:10])}"
        state = RunState.FAIL if text is not None else RunState.ABORT if stopped else RunState.COMPLETE
        return self._whole(state, at, self._error(text))

    def tables(self, report: RunResult, since: datetime, at: datetime, part: int) -> Iterator[RunEvent]:
        """Start (at `since`) and end (`at`) of each table's run; events of the same `part` have the same ids."""
        settings = self.pipeline.settings
        of_run = ol.parent_run.Run(self.run_id), ol.parent_run.Job(settings.openlineage_namespace, self.job)
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
            yield RunEvent(eventType=state, eventTime=at.isoformat(), run=run, job=job, inputs=inputs, outputs=outputs)

    def _whole(self, state: RunState, at: datetime, facets: dict[str, ol.RunFacet]) -> RunEvent:
        engine = ol.processing_engine_run.ProcessingEngineRunFacet(pyspark.__version__, "Spark", version("game-events"))
        about = f"Brings the tables below {self.pipeline.lakehouse.root} up to their source"
        job = self._job(self.job, "STREAMING" if self.streaming else "BATCH", "JOB", about)
        run = Run(self.run_id, facets={"processing_engine": engine, **facets})
        return RunEvent(eventType=state, eventTime=at.isoformat(), run=run, job=job)

    def _job(self, name: str, processing: str, kind: str, about: str) -> Job:
        facets: dict[str, ol.JobFacet] = {
            "jobType": ol.job_type_job.JobTypeJobFacet(processing, "GAME_EVENTS", kind),
            "documentation": ol.documentation_job.DocumentationJobFacet(about),
        }
        owners = self.pipeline.settings.owners
        if owners:
            facets["ownership"] = ol.ownership_job.OwnershipJobFacet([ol.ownership_job.Owner(owner) for owner in owners])
        return Job(self.pipeline.settings.openlineage_namespace, name, facets=facets)

    def _error(self, text: str | None) -> dict[str, ol.RunFacet]:
        if text is None:
            return {}
        masked = without_secrets(text, self.pipeline.settings)
        return {"errorMessage": ol.error_message_run.ErrorMessageRunFacet(masked, "python")}
