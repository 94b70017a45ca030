"""A tick of a sensor: how sensors are declared, what a tick has, cursors between ticks, and errors.

Dagster keeps the reason of each skipped tick, and the traceback of each that fails.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Self, TypeVar, cast

import dagster as dg
from dagster import DagsterInstance
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, ValidationError

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.orchestration.events import one_line
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import OwnRuns

Result = TypeVar("Result")

Evaluate = Callable[[dg.SensorEvaluationContext], Result]

#: Seconds since 1970.
Clock = Callable[[], float]

#: Names that a reason has.
SHOWN = 10


@dataclass(frozen=True)
class Tick:
    """What a sensor decides from."""

    graph: Graph
    context: dg.SensorEvaluationContext
    clock: Clock = time.time

    @property
    def instance(self) -> DagsterInstance:
        """Where runs and events are."""
        return self.context.instance

    @cached_property
    def settings(self) -> Settings:
        """The settings of now.

        Raises:
            ConfigurationError: they are invalid.
        """
        return self.graph.source.read()

    def own_runs(self, settings: Settings) -> OwnRuns:
        """The runs of the settings' lakehouse, and those of this code location that no process has tagged yet."""
        location = self.context.code_location_origin
        return OwnRuns.of(settings, None if location is None else f"{self.context.repository_name}@{location.location_name}")

    @property
    def checks(self) -> Collection[dg.AssetCheckKey]:
        """All checks of the code location."""
        repository = self.context.repository_def
        return repository.asset_graph.asset_check_keys if repository else ()


@dataclass(frozen=True)
class Sensor:
    """The declaration of a sensor, which runs from the beginning unless the settings say that nothing does.

    `interval_s`: between two ticks. `decide`: what a tick does. `job`: the one that it starts.
    """

    name: str
    interval_s: int
    decide: Callable[[Tick], dg.SensorResult | dg.RunRequest | dg.SkipReason]
    description: str
    job: str | None = None

    def build(self, graph: Graph, clock: Clock = time.time) -> dg.SensorDefinition:
        """Dagster's sensor, guarded by `masked`."""

        def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.RunRequest | dg.SkipReason:
            return self.decide(Tick(graph, context, clock))

        return dg.SensorDefinition(
            name=graph.keys.named(self.name),
            evaluation_fn=masked(evaluate, graph.source.given),
            description=self.description,
            job_name=None if self.job is None else graph.keys.named(self.job),
            minimum_interval_seconds=self.interval_s,
            default_status=graph.sensor_status,
        )


def masked(evaluate: Evaluate[Result], given: Settings | None = None) -> Evaluate[Result]:
    """Skip a sensor's tick where settings, a table or a server cannot be read; mask secrets in its reasons and errors.

    Raises:
        GameEventsError: with the masked traceback of another error that holds a secret; every other error as it is.
    """

    @wraps(evaluate)
    def without_secrets(context: dg.SensorEvaluationContext) -> Result:
        try:
            said = evaluate(context)
        except (GameEventsError, DeltaError, OSError) as error:
            said = cast(Result, dg.SkipReason(str(error)))
        except Exception as error:
            text = masked_traceback(error, given or settings_to_mask())
            if text is None:
                raise
            raise GameEventsError(text) from None
        if isinstance(said, dg.SkipReason) and said.skip_message is not None:
            return cast(Result, dg.SkipReason(one_line(mask(said.skip_message, given or settings_to_mask()))))
        return said

    return without_secrets


def some(names: Iterable[object]) -> str:
    """The first names, and how many more there are."""
    every = list(map(str, names))
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


class SensorCursor(BaseModel):
    """State of a sensor between two ticks, kept by Dagster as JSON."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Parse a cursor; an empty or invalid one gives a new one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
