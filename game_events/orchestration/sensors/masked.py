"""Masking for sensors: Dagster keeps the reason of each tick, and the traceback of each that fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

import dagster as dg

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.errors import GameEventsError

Result = TypeVar("Result")
Evaluate = Callable[[dg.SensorEvaluationContext], Result]


def masked(evaluate: Evaluate[Result]) -> Evaluate[Result]:
    """Mask secrets in the reasons and errors of a sensor's function.

    Raises:
        GameEventsError: with the masked traceback of an error that holds one; every other error as it is.
    """

    @wraps(evaluate)
    def without_secrets(context: dg.SensorEvaluationContext) -> Result:
        try:
            said = evaluate(context)
        except Exception as error:
            text = masked_traceback(error, settings_to_mask())
            if text is None:
                raise
            raise GameEventsError(text) from None
        if isinstance(said, dg.SkipReason) and said.skip_message is not None:
            return cast(Result, dg.SkipReason(mask(said.skip_message, settings_to_mask())))
        return said

    return without_secrets
