"""What jobs share: options of runs, as on the command line, and of materializations by hand."""

import dagster as dg
from pydantic import Field

from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.selection import Selection, selection_of


class RefreshConfig(dg.Config):
    """Options of a materialization by hand."""

    full_refresh: bool = Field(default=False, description="Replace the tables by everything that the layer before has of them.")


class RunConfig(dg.Config):
    """Options of the job `refresh`; by default everything is brought up to date and nothing is replaced."""

    select: list[str] = Field(
        default=[], description="Layers, asset keys or tables to bring up to date; empty: all. See docs/refresh.md."
    )
    games: list[str] = Field(default=[], description="Only these games, in silver and gold; empty: every game.")
    full_refresh: list[str] = Field(
        default=[],
        description="Layers, asset keys or tables to replace by everything the layer before has of them; `all`: every layer.",
    )
    ignore_intervals: bool = Field(
        default=False, description="Refresh gold aggregates before their own interval has passed, too."
    )

    def selection(self, pipeline: Pipeline) -> Selection:
        """Checked against what there is; raises before anything is touched."""
        return selection_of(pipeline, self.select, self.games, self.full_refresh)
