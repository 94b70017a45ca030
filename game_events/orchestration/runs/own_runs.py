"""The runs of one lakehouse in a Dagster instance, which other lakehouses and other teams may share."""

from dataclasses import dataclass
from typing import Any, Self

from dagster import DagsterInstance, DagsterRun, RunRecord, RunsFilter

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse

#: Tag of every run: the lakehouse that it works on, as its root and the prefix of its tables. Jobs have it from the beginning;
#: what is materialized by hand, from when its process has begun.
LAKEHOUSE_TAG = "game_events/lakehouse"
#: Dagster's own tag of the repository and code location that a run was started from.
REPOSITORY_TAG = ".dagster/repository"


def lakehouse_of(settings: Settings) -> Lakehouse | None:
    """The lakehouse; None where it cannot be one: the project loads all the same, and each run says what is wrong."""
    try:
        return Lakehouse.of(settings)
    except ConfigurationError:
        return None


def lakehouse_tag(settings: Settings) -> dict[str, str]:
    """The tag of a lakehouse's runs."""
    lakehouse = lakehouse_of(settings)
    root = settings.lakehouse if lakehouse is None else lakehouse.root
    return {LAKEHOUSE_TAG: f"{root}/{settings.names.prefix}*"}


def repository_of(run: DagsterRun) -> str | None:
    """Repository and code location that a run was started from; None: from none (the command line)."""
    return run.tags_for_storage().get(REPOSITORY_TAG)


@dataclass(frozen=True)
class OwnRuns:
    """Which runs of an instance belong to a lakehouse.

    Attributes:
        lakehouse: value of their tag.
        repository: `{repository}@{code location}` of the code that asks; its runs without a tag are own ones, too. None: not
            known (the command line), so that only tagged runs are.
    """

    lakehouse: str
    repository: str | None = None

    @classmethod
    def of(cls, settings: Settings, repository: str | None = None) -> Self:
        """The runs of the settings' lakehouse."""
        return cls(lakehouse_tag(settings)[LAKEHOUSE_TAG], repository)

    def has(self, run: DagsterRun) -> bool:
        """Whether a run is one of them."""
        tag = run.tags.get(LAKEHOUSE_TAG)
        if tag is not None:
            return tag == self.lakehouse
        return self.repository is not None and repository_of(run) == self.repository

    def records(self, instance: DagsterInstance, limit: int, *, by_update: bool = False, **wanted: Any) -> list[RunRecord]:  # noqa: ANN401
        """Runs that a filter finds (`wanted`: what `RunsFilter` takes, but for tags): the newest, newest first.

        `by_update`: those whose last update is the oldest, in its order.
        """
        order = {"order_by": "update_timestamp", "ascending": True} if by_update else {}
        tags = [{LAKEHOUSE_TAG: self.lakehouse}] + ([{REPOSITORY_TAG: self.repository}] if self.repository else [])
        found = {
            record.storage_id: record
            for tag in tags
            for record in instance.get_run_records(RunsFilter(tags=tag, **wanted), limit, **order)  # type: ignore[arg-type]
            if self.has(record.dagster_run)
        }
        if by_update:
            return sorted(found.values(), key=lambda record: record.update_timestamp)[:limit]
        return [found[number] for number in sorted(found, reverse=True)][:limit]

    def runs(self, instance: DagsterInstance, limit: int, **wanted: Any) -> list[DagsterRun]:  # noqa: ANN401 - of RunsFilter
        """The newest runs that a filter finds, as `records`."""
        return [record.dagster_run for record in self.records(instance, limit, **wanted)]

    def tagged(self, **wanted: Any) -> RunsFilter:  # noqa: ANN401 - of RunsFilter
        """A filter for the runs with the tag."""
        return RunsFilter(tags={LAKEHOUSE_TAG: self.lakehouse}, **wanted)
