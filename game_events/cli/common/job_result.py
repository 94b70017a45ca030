"""How a run that a command made has ended."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobResult:
    """How it ended; `report`: `RunReport.to_dict`, empty if the run failed before there was one.

    `run_id`: Dagster's; empty: there was nothing to do, so there is no run.
    """

    run_id: str
    success: bool
    report: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
