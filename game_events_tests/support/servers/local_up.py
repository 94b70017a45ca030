"""`game-events up` in a folder of its own, as a user has it: without any file of the project, nothing started before."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil

from game_events.config.settings import Settings, load_settings
from game_events.plugins.local.producer.produce import Manifest, produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events.plugins.local.servers.local_stack import StackFiles
from game_events.plugins.local.servers.server_process import free_ports
from game_events_tests.support.processes import running
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS

#: None of them is reached unless something hangs: a slow machine may take minutes.
START_S, STOP_S, LOOK_S = 900, 300, 0.2
LAUNCH = """mutation($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
 ... on LaunchRunSuccess { run { runId } } } }"""
STATUS = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
RUNS = """query { runsOrError { ... on Runs { results { runId pipelineName status endTime tags { key value } } } } }"""
SENSORS = """query { sensorsOrError(
 repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "game_events"})
 { ... on Sensors { results { name sensorState { id status ticks(limit: 1) { status timestamp } } } } } }"""


class Site:
    """A folder where the command line is used; what `game-events up` needs comes with the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lakehouse = folder / "lakehouse"
        self.environment = {k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"} | {
            "GAME_EVENTS_STATE_DIR": str(folder / "state"),
            "GAME_EVENTS_LAKEHOUSE": str(self.lakehouse),
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
            "GAME_EVENTS_MODE": "production",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        }
        (self.port,) = free_ports(1)
        self.log = folder / "up.log"

    def start(self) -> subprocess.Popen[bytes]:
        """`game-events up`; returns when it has printed the address."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [self.script, "up", "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + START_S
            while f"Dagster UI: http://127.0.0.1:{self.port}" not in self.log.read_text():
                assert process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(LOOK_S)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
            raise
        return process

    def settings(self) -> Settings:
        """Settings for code of this process."""
        state = StackFiles(self.folder / "state").read()
        assert state is not None
        return load_settings(
            kafka_bootstrap_servers=state.kafka_bootstrap_servers,
            schema_registry_url=state.schema_registry_url,
            lakehouse=str(self.lakehouse),
            state_dir=self.folder / "state",
        )

    def produce(self, **options: object) -> Manifest:
        """Events onto its topic."""
        return produce(self.settings(), Simulation(**options))

    def wait_for(self, what: Callable[[], object], seconds: float) -> None:
        """Until it is so."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, (self.runs(), self.log.read_text()[-3000:])
            time.sleep(LOOK_S)

    def run(self, *arguments: str) -> dict:
        """A command with `--json`: its result."""
        found = subprocess.run(
            [self.script, *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout.splitlines()[-1])

    def ask(self, query: str, **variables: object) -> dict:
        """A question to the UI's server."""
        body = {"query": query, "variables": variables}
        answer = httpx2.post(f"http://127.0.0.1:{self.port}/graphql", json=body, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def sensors(self) -> dict[str, dict]:
        """Each sensor's state."""
        return {s["name"]: s["sensorState"] for s in self.ask(SENSORS)["sensorsOrError"]["results"]}

    def stop_sensor(self, name: str) -> None:
        """Switch a sensor off, as its switch does; its last tick has ended then."""
        self.ask("mutation($id: String!) { stopSensor(id: $id) { __typename } }", id=self.sensors()[name]["id"])
        while "STARTED" in [tick["status"] for tick in self.sensors()[name]["ticks"]]:
            time.sleep(0.1)

    def start_sensor(self, name: str) -> None:
        """Switch it on again."""
        selector = {"repositoryName": "__repository__", "repositoryLocationName": "game_events", "sensorName": name}
        self.ask("mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }", s=selector)

    def runs(self) -> list[dict]:
        """All runs, the newest first."""
        return self.ask(RUNS)["runsOrError"]["results"]

    def is_quiet(self) -> bool:
        """Whether no run is under way, and automation has looked at all that have ended without starting another."""
        # The tick first: a run that it has started is among the runs.
        (tick,) = self.sensors()["automation"]["ticks"] or [{"status": "STARTED"}]
        runs = self.runs()
        ended = {run["status"] for run in runs} <= {"SUCCESS", "FAILURE", "CANCELED"}
        return ended and tick["status"] != "STARTED" and tick["timestamp"] > max(run["endTime"] for run in runs)

    def launch(self, job: str, *assets: str) -> str:
        """Start a job, or some assets, as its launchpad does; its run's id."""
        selector = {"repositoryName": "__repository__", "repositoryLocationName": "game_events", "jobName": job}
        if assets:
            selector["assetSelection"] = [{"path": [name]} for name in assets]
        answer = self.ask(LAUNCH, p={"selector": selector, "mode": "default"})
        return answer["launchPipelineExecution"]["run"]["runId"]

    def status(self, run_id: str) -> str:
        """How a run stands."""
        return self.ask(STATUS, id=run_id)["runOrError"]["status"]

    def processes(self) -> list[str]:
        """Command lines of everything that still runs for this folder."""
        mine = str(self.folder / "state")
        found = []
        for process in running():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and mine in process.environ().get("GAME_EVENTS_STATE_DIR", ""):
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    @property
    def script(self) -> str:
        """The installed command."""
        return str(Path(sys.executable).with_name("game-events"))
