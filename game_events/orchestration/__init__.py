"""The Dagster side: assets, job, checks, sensors, resources. The pipeline they call knows nothing of Dagster."""
