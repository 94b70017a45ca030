"""Options of runs and of materializations by hand."""

import dagster as dg


class RefreshConfig(dg.Config):
    """Options of a materialization by hand."""

    full_refresh: bool = False


class RunConfig(dg.Config):
    """Options of the job `refresh`."""

    ignore_intervals: bool = False
