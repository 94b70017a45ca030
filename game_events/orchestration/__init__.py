"""The Dagster side: assets, job, checks, sensors, resources. The pipeline they call knows nothing of Dagster."""

import warnings

import dagster as dg

# `backfill_policy` (several partitions as one run) is beta in 1.13 and used on purpose: a user who loads the project cannot act
# on the warning.
warnings.filterwarnings("ignore", message="Parameter `backfill_policy`", category=dg.BetaWarning)
