"""The job `archive`: raw records of bronze and quarantine to a folder or prefix outside of the lakehouse."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from game_events.orchestration.jobs import check_place
from game_events.orchestration.keys import REPORT
from game_events.orchestration.resources import Graph
from game_events.plugins.files.archive import ArchiveResult
from game_events.plugins.files.archive import archive as write_archive

OP = "archive_raw_records"


class ArchiveConfig(dg.Config):
    """Where to."""

    to: str = Field(
        description="Folder, or prefix in an object store, below one of `JOB_PLACES`; records are added to what it has."
    )


def build_archive(graph: Graph) -> dg.Definitions:
    """The job; the files source reads back what it writes, without broker and registry."""

    @graph.op(
        OP,
        "Adds the raw records that came since the last time to an archive of Parquet files, each once. Nothing of the "
        "lakehouse changes.",
        "bronze",
    )
    def archive_raw_records(context: dg.OpExecutionContext, config: ArchiveConfig) -> Iterator[dg.Output[None]]:
        with graph.lakehouse(context).recorded(context, "archive") as (pipeline, report):
            check_place(pipeline.settings, config.to)
            write_archive(pipeline, report, config.to)
        metadata: dict[str, dg.MetadataValue] = {REPORT: dg.MetadataValue.json(report.to_dict())}
        done = report.part(ArchiveResult)
        if done is not None:
            metadata["records"] = dg.MetadataValue.int(done.rows)
            metadata["place"] = dg.MetadataValue.text(done.to)
        yield dg.Output(None, metadata=metadata)

    job = graph.job(
        "archive",
        "Raw records of bronze and quarantine to an archive that the files source reads back. The same as "
        "`game-events archive`.",
        archive_raw_records,
    )
    return dg.Definitions(jobs=[job])
