"""What sensors share: cursors, and errors (Dagster keeps the reason of each skipped tick, the traceback of each that fails)."""

from collections.abc import Callable
from functools import wraps
from typing import Self, TypeVar, cast

import dagster as dg
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, ValidationError

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.errors import GameEventsError

Result = TypeVar("Result")
Evaluate = Callable[[dg.SensorEvaluationContext], Result]


def masked(evaluate: Evaluate[Result]) -> Evaluate[Result]:
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
            text = masked_traceback(error, settings_to_mask())
            if text is None:
                raise
            raise GameEventsError(text) from None
        if isinstance(said, dg.SkipReason) and said.skip_message is not None:
            return cast(Result, dg.SkipReason(mask(said.skip_message, settings_to_mask())))
        return said

    return without_secrets


class Cursor(BaseModel):
    """State of a sensor between two ticks, kept by Dagster as JSON."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Parse a cursor; an empty or invalid one gives a new one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
