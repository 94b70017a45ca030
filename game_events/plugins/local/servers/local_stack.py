"""The local stack: starts, checks and stops an Apache Kafka broker and a Schema Registry together, on loopback only.

The broker is also its controller (KRaft); the registry is Apicurio's, which speaks the Confluent Schema Registry's API. Each
call checks the running processes: `up` starts only missing ones, so it also repairs a stack of which one half died. Data
outlive every call except ``down(delete_data=True)``, a restart and a killed server; Kafka's records do not survive a power cut.
"""

import base64
import fcntl
import http.client
import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel, ConfigDict, ValidationError

from game_events.config.network import within
from game_events.config.settings import STACK_STATE_FILE
from game_events.errors import ConfigurationError, TransientError
from game_events.jvm import jars
from game_events.jvm.private_folders import private_folder
from game_events.plugins.local.servers.server_process import (
    HOST,
    Ports,
    ServerProcess,
    choose_ports,
    find,
    last_lines,
    listens,
    spawn,
    stop,
)

#: Both are up after about 5 s; a loaded machine may take several times that.
START_TIMEOUT_S = 120

POLL_S = 0.1


class StackState(BaseModel):
    """What ``stack.json`` holds: addresses, all listeners, and processes (None: not started yet, or ended)."""

    model_config = ConfigDict(frozen=True)

    kafka_bootstrap_servers: str
    schema_registry_url: str
    ports: Ports
    kafka: ServerProcess | None = None
    registry: ServerProcess | None = None

    @property
    def servers(self) -> dict[str, ServerProcess]:
        """Its processes by name."""
        return {name: server for name in ("kafka", "registry") if (server := getattr(self, name)) is not None}


class StackFiles:
    """Files below ``state_dir/stack``: ``stack.json`` while it runs, its last ports, and the lock that serialises changes."""

    def __init__(self, state_dir: Path) -> None:
        self.state = state_dir.resolve() / STACK_STATE_FILE
        self.folder = self.state.parent
        self.ports = self.folder / "ports.json"
        self.kafka_log = self.folder / "logs" / "kafka.log"
        self.registry_log = self.folder / "logs" / "registry.log"

    def read(self) -> StackState | None:
        """The recorded state, with those of its processes that still run; None: missing or unreadable."""
        try:
            state = StackState.model_validate_json(self.state.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        return state.model_copy(update={name: None for name, server in state.servers.items() if find(server) is None})

    def write(self, state: StackState) -> None:
        """Record `state`; a reader sees the old or the new one."""
        for path, text in ((self.state, state.model_dump_json(indent=2)), (self.ports, state.ports.model_dump_json())):
            new = path.with_name(path.name + ".new")
            new.write_text(text + "\n")
            new.replace(path)

    @contextmanager
    def locked(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of this folder; `on_wait` is called if another process has it."""
        private_folder(self.folder)
        try:
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise ConfigurationError(f"cannot write the state folder {self.folder}: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class StackStatus:
    """What runs and what answers; `state` is None if no stack was started here."""

    state: StackState | None
    kafka_healthy: bool
    registry_healthy: bool

    @property
    def healthy(self) -> bool:
        """Both run and answer."""
        return self.kafka_healthy and self.registry_healthy


def up(
    state_dir: Path,
    kafka_port: int | None = None,
    registry_port: int | None = None,
    on_progress: jars.Progress | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> StackState:
    """Make the stack of `state_dir` run; returns when broker and registry both answer.

    A stack that runs already is returned as it is. What died is started again on its data, and on its old port if that
    is free. Calls from several processes wait for each other. A call that fails stops what it started. `on_progress` gets a
    line before each long step.

    Raises:
        ConfigurationError: no Java, a given port is busy, or a server ended while starting (with the end of its log).
        TransientError: a server did not answer in `start_timeout_s`, or the Java parts could not be fetched.
    """
    progress = on_progress or (lambda _line: None)
    files = StackFiles(state_dir)
    with files.locked(lambda: progress("waiting for another process that starts or stops this stack")):
        before = files.read()
        running = before.servers if before else {}
        used = {name: server.port for name, server in running.items()}
        if before and before.kafka:
            used["controller"] = before.ports.controller
        last: dict[str, int] = {}
        with suppress(OSError, ValidationError):
            last = Ports.model_validate_json(files.ports.read_bytes()).model_dump()
        ports = choose_ports({"kafka": kafka_port, "registry": registry_port}, used, last)
        state = StackState(
            kafka_bootstrap_servers=f"{HOST}:{ports.kafka}", schema_registry_url=url(ports.registry), ports=ports, **running
        )
        try:
            state = _start_missing(state, files, progress)
            _wait_until_healthy(state, files, start_timeout_s)
        except BaseException:  # Ctrl-C as well: nothing stays behind that no file records
            _undo(files, running)
            raise
        return state


def down(state_dir: Path, *, delete_data: bool = False) -> bool:
    """Stop the stack of `state_dir`; returns whether something ran. Only processes that the stack recorded are touched.

    `delete_data`: remove topics, schemas, logs and the remembered ports as well.
    """
    files = StackFiles(state_dir)
    if not files.folder.is_dir():
        return False
    with files.locked():
        state = files.read()
        running = list(state.servers.values()) if state else []
        stop(running)
        files.state.unlink(missing_ok=True)
        if delete_data:  # all but the lock, which is held
            for name in ("data", "logs"):
                if (files.folder / name).exists():
                    shutil.rmtree(files.folder / name)
            files.ports.unlink(missing_ok=True)
    return bool(running)


def status(state_dir: Path) -> StackStatus:
    """State of the stack of `state_dir`, without changing anything."""
    state = StackFiles(state_dir).read()
    servers = state.servers if state else {}
    kafka_healthy = "kafka" in servers and kafka_is_healthy(servers["kafka"].port)
    registry_healthy = "registry" in servers and registry_is_healthy(servers["registry"].port)
    return StackStatus(state, kafka_healthy, registry_healthy)


def _start_missing(state: StackState, files: StackFiles, progress: jars.Progress) -> StackState:
    """Start what `state` has no process for; each is recorded as soon as it exists."""
    if state.kafka is not None and state.registry is not None:
        return state
    parts = jars.folder_of(jars.STACK, progress)
    if state.registry is None:
        progress(f"starting the Schema Registry on port {state.ports.registry}")
        registry = _start_registry(parts / "registry", files.folder, port=state.ports.registry, log=files.registry_log)
        state = state.model_copy(update={"registry": registry})
        files.write(state)
    if state.kafka is None:
        progress(f"starting Kafka on port {state.ports.kafka}")
        kafka = start_kafka(parts / "kafka", files.folder, ports=state.ports, log=files.kafka_log)
        state = state.model_copy(update={"kafka": kafka})
        files.write(state)
    return state


def _wait_until_healthy(state: StackState, files: StackFiles, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    waiting = {
        "Kafka": (state.kafka, kafka_is_healthy, files.kafka_log),
        "the Schema Registry": (state.registry, registry_is_healthy, files.registry_log),
    }
    while waiting:
        for name, (server, is_healthy, log) in list(waiting.items()):
            if server is None or find(server) is None:
                raise ConfigurationError(f"{name} ended while starting; the last lines of {log}:\n{last_lines(log)}")
            if is_healthy(server.port):
                del waiting[name]
        if waiting and time.monotonic() > deadline:
            ends = "\n".join(f"{name}, last lines of {log}:\n{last_lines(log)}" for name, (_, _, log) in waiting.items())
            raise TransientError(f"no answer in {timeout_s:g} s: run `game-events stack down`, then try again\n{ends}")
        if waiting:
            time.sleep(POLL_S)


def _undo(files: StackFiles, kept: Mapping[str, ServerProcess]) -> None:
    """Stop what was started besides the servers that ran before."""
    state = files.read()
    if state is None:
        return
    stop([server for name, server in state.servers.items() if name not in kept])
    if kept:
        files.write(state.model_copy(update={"kafka": kept.get("kafka"), "registry": kept.get("registry")}))
    else:
        files.state.unlink(missing_ok=True)


HEALTH_TIMEOUT_S = 5

NODE_ID = 1

LOG4J = Path(__file__).with_name("log4j2.xml")

#: Relative to the stack's folder, the working directory, as its path may hold any characters.
DATA = Path("data/kafka")

PROPERTIES = Path("data/server.properties")

#: 350 MB are resident with this heap; the log cleaner alone asks for 128 MB. Fast to start: shared class data, no parallel
#: collector on a small heap.
JVM_OPTIONS = ("-Xmx512m", "-Xms512m", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")


def properties(ports: Ports) -> dict[str, str]:
    """The broker's settings."""
    return {
        "process.roles": "broker,controller",
        "node.id": f"{NODE_ID}",
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{ports.kafka},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{ports.kafka}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": DATA.as_posix(),
        # A typing error in a topic's name must not create a topic.
        "auto.create.topics.enable": "false",
        "num.partitions": "4",
        # Nothing expires: a demo may be used again after a month.
        "log.retention.ms": "-1",
        # Simulated events may lie in the future.
        "log.message.timestamp.after.max.ms": f"{2**63 - 1}",
        "group.initial.rebalance.delay.ms": "0",
        # A broker that was killed may register again only when its session is over: 12 s to start with the default, 9 s.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # One broker has one replica of everything, and one partition of each internal topic starts faster than 50.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
    }


def start_kafka(
    class_path: Path, folder: Path, *, ports: Ports, log: Path, conf: Mapping[str, str] | None = None
) -> ServerProcess:
    """Start the broker with the jars of a folder; a new data folder is formatted, ConfigurationError if it cannot be.

    `conf`: its settings; None: `properties`.
    """
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={value}\n" for key, value in (conf or properties(ports)).items()]
    (folder / PROPERTIES).write_text("".join(lines))
    command = [str(jars.find_java()), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={LOG4J.as_uri()}", "-cp", f"{class_path}/*"]
    if not (folder / DATA / "meta.properties").exists():
        cluster_id = "g" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # must not begin with a hyphen
        arguments = ["--config", PROPERTIES.as_posix(), "--cluster-id", cluster_id, "--ignore-formatted"]
        tool = [*command, "kafka.tools.StorageTool", "format", *arguments]
        answer = subprocess.run(tool, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
        if answer.returncode != 0:
            output = (answer.stdout + answer.stderr).strip()[-2000:]
            raise ConfigurationError(f"Kafka cannot format its data folder {folder / DATA}:\n{output}")
    return spawn([*command, "kafka.Kafka", PROPERTIES.as_posix()], port=ports.kafka, cwd=folder, log=log)


def kafka_is_healthy(port: int) -> bool:
    """Whether the broker answers a request for metadata and counts itself as alive."""
    if not listens(port):  # spares librdkafka's own complaints while the broker starts
        return False
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
    try:
        return bool(client.list_topics(timeout=HEALTH_TIMEOUT_S).brokers)
    except KafkaException:
        return False


API = "/apis/ccompat/v7"

#: Below the stack's folder, which is the working directory. H2 wants the ``./``.
DATABASE = "./data/registry/h2"


def url(port: int) -> str:
    """The registry's address for clients."""
    return f"http://{HOST}:{port}{API}"


def _start_registry(distribution: Path, folder: Path, *, port: int, log: Path) -> ServerProcess:
    (folder / DATABASE).parent.mkdir(parents=True, exist_ok=True)
    (runner,) = distribution.glob("*-runner.jar")
    options = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": f"{port}",
        # WRITE_DELAY=0: a confirmed registration survives a killed server.
        "apicurio.datasource.url": f"jdbc:h2:file:{DATABASE};WRITE_DELAY=0",
        "quarkus.log.console.color": "false",
        "java.awt.headless": "true",
    }
    # The first compiler level only: half the time to start, and it serves a few requests a minute.
    jvm = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    command = [str(jars.find_java()), *jvm, *(f"-D{key}={value}" for key, value in options.items()), "-jar", str(runner)]
    return spawn(command, port=port, cwd=folder, log=log)


def registry_is_healthy(port: int) -> bool:
    """Whether the registry lists its subjects."""
    # http.client: no proxy of the environment can stand between us and the loopback address.
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_TIMEOUT_S)

    def ask() -> bool:
        connection.request("GET", f"{API}/subjects")
        answer = connection.getresponse()
        return answer.status == http.client.OK and isinstance(json.loads(answer.read()), list)

    try:
        return within(HEALTH_TIMEOUT_S, ask, "registry health")
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
