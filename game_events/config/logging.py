"""Names of loggers."""

from __future__ import annotations

#: Progress messages for users: shown in the Dagster run's log, and by the command line beside its spinner.
PROGRESS_LOGGER = "game_events.progress"
