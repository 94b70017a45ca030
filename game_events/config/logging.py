"""Names of loggers."""

from __future__ import annotations

#: Told what is under way, in words for a person: Dagster shows it in the run's log, the command line beside its spinner.
PROGRESS_LOGGER = "game_events.progress"
