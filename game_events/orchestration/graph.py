"""One pipeline in Dagster: its settings, and the names of its parts.

Several pipelines may be in one code location, or Dagster instance: their prefixes (`names` of the settings) are in the names
of their assets, jobs, ops, sensors, schedules, pools and resources.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import dagster as dg

from game_events.config.settings import Settings, SettingsSource
from game_events.orchestration.keys import Keys
from game_events.orchestration.resources import LakehouseResource, SparkResource
from game_events.orchestration.runs.errors import StepContext
from game_events.orchestration.runs.own_runs import lakehouse_tag

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
        found = source.read()
        return cls(source, found, Keys.of(found))

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
        found: LakehouseResource = getattr(context.resources, self.resource)
        return found

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

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        """Whether schedules run from the beginning."""
        return dg.DefaultScheduleStatus.RUNNING if self.settings.automation else dg.DefaultScheduleStatus.STOPPED
