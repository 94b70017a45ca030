"""What commands share: arguments, output, a run of a Dagster job."""
