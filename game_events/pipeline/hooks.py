"""What the pipeline asks plug-ins: which records must not be stored, and who wants to know what a run does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import erasures
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.plugin import installed, parts
from game_events.workers.decode import RecordFilter


class RunObserver(Protocol):
    """Is told what a run does, and adds to its report what it did itself. Never raises: the rows are committed."""

    def part(self, report: RunReport) -> None:
        """What a continuous run did since the last time."""

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """What the run did (since the last part), and how it ended; `stopped`: by a signal, so that little time is left."""


class RunObservers:
    """The observers of one run, of all plug-ins."""

    def __init__(self, pipeline: Pipeline, job: str, *, is_streaming: bool = False) -> None:
        """Tell them of the run's start."""
        self._observers: list[RunObserver] = [observe(pipeline, job, is_streaming) for observe in parts("run_observer")]

    def part(self, report: RunReport) -> None:
        """Tell each observer."""
        for observer in self._observers:
            observer.part(report)

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """Tell each observer."""
        for observer in self._observers:
            observer.close(report, error, stopped=stopped)


def record_filter(pipeline: Pipeline, bronze: DeltaTable) -> RecordFilter | None:
    """The filter of what is about to be stored; None: everything may be stored.

    `bronze`: the version with the `erasures` that the commit compares: each addition to what the filter refuses changes them.

    Raises:
        ConfigurationError: people were erased, and the plug-in that knows them is not installed; or as the plug-in says.
    """
    filters = [make(pipeline, bronze) for make in parts("record_filter")]
    if not filters and erasures(bronze):
        raise ConfigurationError(
            "people were erased from this lakehouse, and no installed plug-in keeps their records out: nothing was read. "
            "Install the plug-in governance of this project"
        )
    active = [each for each in filters if each is not None]
    if len(active) > 1:
        names = ", ".join(plugin.name for plugin in installed() if plugin.record_filter is not None)
        raise ConfigurationError(f"several plug-ins filter records, which only one may do: {names}")
    return active[0] if active else None


def erase_rejected(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Erase records of quarantine that a filter refused when they were decoded later.

    `records`: (topic id, partition, offset, batch) of each. Returns the number of erased rows.
    """
    return sum(erase(pipeline, records) for erase in parts("erase_rejected")) if records else 0
