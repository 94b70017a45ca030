"""What sensors share: how they are declared, cursors, and errors.

Dagster keeps the reason of each skipped tick, and the traceback of each that fails.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Self, TypeVar, cast

import dagster as dg
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, ValidationError

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.orchestration.events.texts import one_line
from game_events.orchestration.graph import Graph
from game_events.orchestration.runs.own_runs import OwnRuns

Result = TypeVar("Result")
Evaluate = Callable[[dg.SensorEvaluationContext], Result]
#: Names that a reason has.
SHOWN = 10


def sensor(
    graph: Graph, description: str, interval_s: int, job: str | None = None
) -> Callable[[Evaluate[Result]], dg.SensorDefinition]:
    """Decorator that makes a sensor of a function, under its name; it runs unless the settings say that nothing does.

    `masked` guards it. `job`: the one that it starts.
    """

    def sensor_of(evaluate: Evaluate[Result]) -> dg.SensorDefinition:
        decorate = dg.sensor(
            name=graph.keys.named(evaluate.__name__),
            description=description,
            job_name=None if job is None else graph.keys.named(job),
            minimum_interval_seconds=interval_s,
            default_status=graph.sensor_status,
        )
        return decorate(masked(evaluate, graph.source.given))  # type: ignore[arg-type]

    return sensor_of


def own_runs(context: dg.SensorEvaluationContext, settings: Settings) -> OwnRuns:
    """The runs of the settings' lakehouse, and those of this code location that no process has tagged yet."""
    location = context.code_location_origin
    return OwnRuns.of(settings, None if location is None else f"{context.repository_name}@{location.location_name}")


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


class Cursor(BaseModel):
    """State of a sensor between two ticks, kept by Dagster as JSON."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Parse a cursor; an empty or invalid one gives a new one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
