"""The job `archive`: raw records of bronze and quarantine to a folder or prefix outside of the lakehouse."""

from collections.abc import Iterator

import dagster as dg

from game_events.orchestration.jobs.config import job_of
from game_events.orchestration.jobs.places import check_place
from game_events.orchestration.keys import REPORT
from game_events.orchestration.resources import LakehouseResource
from game_events.pipeline.record_archive import archive as write_archive

OP = "archive_raw_records"


class ArchiveConfig(dg.Config):
    """Where to."""

    to: str


@dg.op(
    name=OP,
    description="Adds the raw records that came since the last time to an archive of Parquet files, each once. Nothing of the "
    "lakehouse changes.",
    out=dg.Out(dg.Nothing),
    pool="bronze",
)
def archive_raw_records(
    context: dg.OpExecutionContext, config: ArchiveConfig, lakehouse: LakehouseResource
) -> Iterator[dg.Output[None]]:
    """What the files source reads back, without broker and registry."""
    with lakehouse.recorded(context, "archive") as (pipeline, report):
        check_place(pipeline.settings, config.to)
        write_archive(pipeline, report, config.to)
    metadata: dict[str, dg.MetadataValue] = {REPORT: dg.MetadataValue.json(report.to_dict())}
    if report.archive is not None:
        metadata["records"] = dg.MetadataValue.int(report.archive.rows)
        metadata["place"] = dg.MetadataValue.text(report.archive.to)
    yield dg.Output(None, metadata=metadata)


archive = job_of(
    archive_raw_records,
    "archive",
    "Raw records of bronze and quarantine to an archive that the files source reads back. The same as `game-events archive`.",
)
