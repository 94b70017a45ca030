"""Dagster as a user's process has it: an instance of its own, settings from the environment, the real resources.

Only the Spark session is the tests' shared one: the resource asks for "the session of this process", and there is one already.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance

from game_events.config.settings import Settings, load_settings
from game_events.definitions import build_defs
from game_events.orchestration.assets.layers import build_tables
from game_events.orchestration.checks.tables import build_checks
from game_events.orchestration.resources import LakehouseResource, SparkResource

PROJECT = Path(__file__).parents[2]
RANGE = "dagster/asset_partition_range_"
#: (asset, partition or None) -> times.
Logged = Counter[tuple[str, str | None]]


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The test's settings, where the code that Dagster loads reads them."""
    for key in ("kafka_bootstrap_servers", "schema_registry_url", "kafka_topic", "lakehouse", "state_dir", "spark_master"):
        monkeypatch.setenv(f"GAME_EVENTS_{key.upper()}", str(getattr(settings, key)))
    return settings


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance with the settings of the project's own dagster.yaml, and its databases in memory: SQLite's, without files.

    A run on disk makes a database of its own, which takes longer than the rest that Dagster does for it.
    """
    home = tmp_path / "dagster"
    home.mkdir()
    settings = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    with DagsterInstance.ephemeral(str(home), settings=settings) as found:
        yield found


@cache
def _databases() -> Path:
    """The databases of an instance that nobody has used: to copy them takes a tenth of making them."""
    home = Path(tempfile.mkdtemp(prefix="game-events-test-dagster-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copyfile(PROJECT / "dagster.yaml", home / "dagster.yaml")
    with DagsterInstance.from_config(str(home)):
        return home


@pytest.fixture
def instance_on_disk(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance as a user has it, in a folder: for tests of its files, and of what other processes read in them."""
    home = tmp_path / "on_disk"
    shutil.copytree(_databases(), home)
    with DagsterInstance.from_config(str(home)) as found:
        yield found


@dataclass
class Runs:
    """Starts runs, and says what they logged."""

    instance: DagsterInstance

    def refresh(self) -> dg.ExecuteInProcessResult:
        """The job that sensors and the command line start."""
        return self.job("refresh")

    def job(self, name: str, **ops: dict[str, Any]) -> dg.ExecuteInProcessResult:
        """A job, with the configuration of its ops."""
        config = {"ops": {op: {"config": values} for op, values in ops.items()}}
        return (
            build_defs()
            .resolve_job_def(name)
            .execute_in_process(instance=self.instance, run_config=config, raise_on_error=False)
        )

    def materialize(
        self,
        *keys: dg.AssetKey,
        games: tuple[str, ...] | str | None = None,
        full: bool = False,
        tags: dict[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Assets by hand: one game, a range of games (first and last, in the order Dagster has them), or all."""
        config: dict[str, Any] = {"ops": {key.path[-1]: {"config": {"full_refresh": True}} for key in keys}} if full else {}
        tags = dict(tags or {})
        if isinstance(games, tuple):
            tags |= {RANGE + "start": games[0], RANGE + "end": games[-1]}
        job = build_defs().resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=list(keys),
            partition_key=games if isinstance(games, str) else None,
            tags=tags,
            run_config=config,
            raise_on_error=False,
        )

    def check(self, name: str = "rows_conserved") -> dg.AssetCheckEvaluation:
        """A check by itself, as the UI's button runs it."""
        (chosen,) = [c for c in build_checks() if c.check_key.name == name]
        result = dg.materialize(
            [*build_tables(load_settings()), chosen],  # type: ignore[list-item]
            selection=dg.AssetSelection.checks(chosen),
            instance=self.instance,
            resources={"lakehouse": LakehouseResource(spark=SparkResource())},
            raise_on_error=False,
        )
        (found,) = result.get_asset_check_evaluations()
        return found

    @property
    def games(self) -> list[str]:
        """The partitions that exist."""
        return list(self.instance.get_dynamic_partitions("games"))


@pytest.fixture
def runs(instance: DagsterInstance, environment: Settings, spark: object) -> Runs:  # noqa: ARG001 - they must be there
    """Runs of this test's pipeline."""
    return Runs(instance)


def logged(result: dg.ExecuteInProcessResult) -> Logged:
    """What a run materialized."""
    return Counter((m.asset_key.path[-1], m.partition) for m in materializations(result))


def materializations(result: dg.ExecuteInProcessResult) -> list[dg.AssetMaterialization]:
    """A run's materializations, in order."""
    events = [e for e in result.all_events if e.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION]
    return [e.step_materialization_data.materialization for e in events]
