"""Runs of the job `refresh` on a real Dagster instance; what its steps do to tables is a stub: no Spark."""

import json

import dagster as dg

from game_events.config.settings import SettingsSource, load_settings
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.orchestration import jobs as refresh_job
from game_events.orchestration.keys import execute_here
from game_events.orchestration.resources import LAKEHOUSE, Graph, LakehouseResource, SparkResource
from game_events.pipeline.reporting.result import LayerResult, TableReport
from game_events.pipeline.runs.refresh import OWN_GOLD, TriggeredRun

LAYERS = ["bronze", "silver", "gold", "unified", OWN_GOLD]


class World:
    """Runs whose steps do what a test says, and the entries of the event log."""

    def __init__(self, instance, folder):
        self.instance = instance
        self.settings = load_settings(lakehouse=str(folder / "lakehouse"), mode="production", retry_delay_s=0.01)
        self.work, self.called = {}, []

    def step(self, name, run):
        self.called.append(name)
        self.work.get(name, lambda _: None)(run.report)

    @property
    def entries(self):
        """Of each: the part of the run, how that ended, and the number of tables it names."""
        rows = read_events(Lakehouse.of(self.settings)).to_pylist()
        tables = [row["part"] for row in rows if row["kind"] == "table"]
        runs = [(row["part"], row["status"], json.loads(row["detail"]).get("error")) for row in rows if row["kind"] == "run"]
        return [(part, error["class"] if error else status, tables.count(part)) for part, status, error in runs]

    def lakehouse(self):
        """The resource, with these steps."""
        world = self

        class Run(TriggeredRun):
            @property
            def steps(self):
                return {name: lambda name=name: world.step(name, self) for name in LAYERS}

        class StubbedLakehouse(LakehouseResource):
            def shared(self, run_id, name, begin):
                return super().shared(run_id, name, lambda *given: Run(**vars(begin(*given))))

        source = SettingsSource(self.settings)
        return StubbedLakehouse(spark=SparkResource(source=source), source=source)

    def run(self, config=None, **more):
        graph = Graph.of(self.settings)
        vars(graph)["resources"] = {LAKEHOUSE: self.lakehouse(), "spark": graph.spark}
        job = dg.Definitions(jobs=[refresh_job.build_refresh(graph)]).resolve_job_def("refresh")
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}} | (config or {})
        return execute_here(job, self.instance, quiet, **more)


def landed(game, layer="silver"):
    def work(report):
        report.add(LayerResult(tables=[TableReport(layer, f"{layer}_{game}", "/x", game, rows=1)]))

    return work


def failing_once(error):
    times = []

    def work(_report):
        times.append(1)
        if len(times) == 1:
            raise error

    return work


def fails(game, layer="silver"):
    """A table that fails alone."""
    return lambda report: report.add_failed(layer, Table(f"{layer}_{game}", "/x"), "its log cannot be read", game)


def both(*works):
    def work(report):
        for one in works:
            one(report)

    return work


def failed_steps(result):
    """Step -> its error, up to the reason."""
    failures = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    return {e.step_key: e.step_failure_data.user_failure_data.description.rpartition(": ")[0] for e in failures}


def materialized(result):
    return [(e.asset_key.path[-1], e.partition) for e in result.all_events if e.event_type_value == "ASSET_MATERIALIZATION"]
