"""Two lakehouses and another team in one Dagster instance on PostgreSQL, configured as docs/dagster.md says.

The sensors are those of the definitions, and read real files; Spark is not needed to see whose runs they touch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.remote_origin import RegisteredCodeLocationOrigin
from pydantic import SecretStr

from game_events.config.settings import Settings
from game_events.definitions import build_defs
from game_events.orchestration.runs import PROCESS_TAG, REPOSITORY_TAG, lakehouse_tag, this_process
from game_events.plugins.alerts.sensors import AlertCursor
from game_events_tests.support.docs.pages import blocks
from game_events_tests.support.fixtures.files import file_settings, landing  # noqa: F401 - fixtures
from game_events_tests.support.servers.postgres import Postgres, postgres
from game_events_tests.support.servers.webhook import Receiver

PAGE = Path(__file__).parents[3] / "docs" / "dagster.md"
OWNERS = ("prod", "dev", "other_team")
RUNNING, FAILED, SUCCEEDED = DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as found:
        yield found


@pytest.fixture
def instance(server, tmp_path, monkeypatch) -> Iterator[DagsterInstance]:
    """The instance of the page's own block, without runs."""
    (block,) = [b for b in blocks(PAGE) if "postgres_db" in b.text]
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(block.text)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.from_config(str(home)) as found:
        yield found
        found.wipe()


@pytest.fixture
def receivers() -> Iterator[dict[str, Receiver]]:
    """Each lakehouse's own webhook."""
    prod, dev = Receiver(), Receiver()
    with prod.running(), dev.running():
        yield {"prod": prod, "dev": dev}


@pytest.fixture
def lakehouses(file_settings, landing, receivers) -> dict[str, Settings]:  # noqa: F811 - fixtures
    """Two in one root, with a file that neither has read."""
    file = landing / "events.json"
    file.write_text('{"game_name": "rummy", "gamer_id": "a", "n": 1, "event_timestamp": 1700000000000}\n')
    os.utime(file, (1_700_000_000, 1_700_000_000))
    names = {"prod": file_settings.names, "dev": file_settings.names.model_copy(update={"prefix": "dev_"})}
    return {
        owner: file_settings.model_copy(update={"names": names[owner], "alert_webhook_url": SecretStr(receiver.url)})
        for owner, receiver in receivers.items()
    }


@dataclass(frozen=True)
class OwnersRuns:
    """Runs of one owner.

    Attributes:
        ended: they ended weeks ago. failed: it failed just now. dead: its process is gone. working: they go on.
    """

    ended: list[str]
    failed: str
    dead: str
    working: list[str]

    @property
    def all(self) -> set[str]:
        return {*self.ended, self.failed, self.dead, *self.working}


@dataclass(frozen=True)
class Instance:
    """The instance with the runs of all owners, and the lakehouses' settings."""

    dagster: DagsterInstance
    server: Postgres
    lakehouses: dict[str, Settings]

    def fill(self, owner: str, *, working: bool) -> OwnersRuns:
        """Runs with the names that the owner's jobs have; those of another team have no tag of this project."""
        ended = [self.add(owner, "refresh", status) for status in (SUCCEEDED, FAILED, SUCCEEDED)]
        ended += [self.add(owner, "continuous", FAILED)] if owner == "other_team" else []
        sql = "UPDATE runs SET update_timestamp = update_timestamp - interval '30 days' WHERE run_id = ANY(%s)"
        self.server.execute(sql, ended)
        gone = {PROCESS_TAG: f"{socket.gethostname()}:4000000:1700000000"}
        jobs = ("refresh", "continuous", "replay") if working else ()
        return OwnersRuns(
            ended,
            failed=self.add(owner, "refresh", FAILED),
            dead=self.add(owner, "validate", RUNNING, {} if owner == "other_team" else gone),
            working=[self.add(owner, job, RUNNING, {PROCESS_TAG: this_process()}) for job in jobs],
        )

    def add(self, owner: str, job: str, status: DagsterRunStatus, tags: dict[str, str] | None = None) -> str:
        settings = self.lakehouses.get(owner)
        own = lakehouse_tag(settings) if settings else {}
        name = settings.names.asset(job) if settings else job
        tags = {REPOSITORY_TAG: f"__repository__@{owner}"} | own | (tags or {})
        return self.dagster.add_run(dg.DagsterRun(job_name=name, status=status, tags=tags)).run_id

    def tick(self, owner: str) -> dict[str, object]:
        """Every sensor of a lakehouse, as its code location would: name without prefix -> what it said."""
        settings = self.lakehouses[owner]
        definitions = build_defs(settings)
        said = {}
        for sensor in definitions.sensors:
            if not isinstance(sensor, dg.AutomationConditionSensorDefinition):
                name = sensor.name.removeprefix(settings.names.prefix)
                context = dg.SensorEvaluationContext(
                    instance_ref=None,
                    instance=self.dagster,
                    cursor=AlertCursor(born=0, since=1.7e9).model_dump_json() if name == "alerts" else None,
                    repository_name="__repository__",
                    repository_def=definitions.get_repository_def(),
                    code_location_origin=RegisteredCodeLocationOrigin(owner),
                )
                said[name] = sensor(context)
        return said

    def states(self, runs: set[str]) -> dict[str, tuple[object, ...]]:
        found = [run for run in self.dagster.get_runs() if run.run_id in runs]
        return {run.run_id: (run.status, sorted(run.tags.items())) for run in found}


@pytest.fixture
def shared(instance, server, lakehouses) -> Instance:
    return Instance(instance, server, lakehouses)


def test_the_instance_is_on_the_server(instance):
    assert instance.get_ref().storage_data.class_name == "DagsterPostgresStorage"
    assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
    assert instance.run_monitoring_enabled


@pytest.mark.parametrize("owner", ["prod", "dev"])
def test_the_sensors_of_a_lakehouse_touch_its_own_runs_and_no_others(shared, receivers, owner):
    runs = {each: shared.fill(each, working=each != owner) for each in OWNERS}
    others = set().union(*(runs[each].all for each in OWNERS if each != owner))
    before = shared.states(others)
    assert len(before) == len(others)

    said = shared.tick(owner)

    assert shared.states(others) == before
    prefix = shared.lakehouses[owner].names.prefix
    # The running jobs of others with the same names hold nobody up, and nobody takes them for its own.
    (request,) = said["kafka_lag"].run_requests
    assert request.run_key
    assert "was never started" in said["continuous_mode"].skip_message
    # Own ones: what ended long ago is deleted but for what is needed, the dead one is ended, what failed is reported.
    own = runs[owner]
    left = shared.states(own.all)
    assert set(left) == own.all - set(own.ended)
    assert left[own.dead][0] == FAILED
    alerts = {body["run_id"] for body in receivers[owner].bodies if body["event"] == "run_failed"}
    assert alerts == {own.failed, own.dead}
    assert {body["job"] for body in receivers[owner].bodies} == {f"{prefix}refresh", f"{prefix}validate"}
    (neighbour,) = receivers.keys() - {owner}
    assert receivers[neighbour].bodies == []


def test_the_runs_of_a_lakehouse_hold_up_its_own_sensors_alone(shared):
    working = {owner: shared.add(owner, "refresh", RUNNING, {PROCESS_TAG: this_process()}) for owner in ("prod", "other_team")}
    held, free = shared.tick("prod")["kafka_lag"], shared.tick("dev")["kafka_lag"]
    assert working["prod"][:8] in held.skip_reason.skip_message
    assert not held.run_requests
    assert len(free.run_requests) == 1
