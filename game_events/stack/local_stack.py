"""The local stack: starts, checks and stops a Kafka broker and a Schema Registry together.

Each call checks the running processes. `up` starts only missing ones, so it also repairs a stack of which one half died.
Data outlive every call except ``down(delete_data=True)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from game_events.errors import ConfigurationError, TransientError
from game_events.jvm import jars
from game_events.jvm.java import find_java
from game_events.stack import kafka_broker, registry_server
from game_events.stack.ports import HOST, choose_ports
from game_events.stack.server_process import find, last_lines, stop
from game_events.stack.stack_state import StackFiles, StackState

#: Both are up after about 5 s; a loaded machine may take several times that.
START_TIMEOUT_S = 120
POLL_S = 0.1
Progress = Callable[[str], None]


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
    state_dir: Path, kafka_port: int | None = None, registry_port: int | None = None, on_progress: Progress | None = None
) -> StackState:
    """Make the stack of `state_dir` run; returns when broker and registry both answer.

    A stack that runs already is returned as it is. What died is started again on its data, and on its old port if that
    is free. Calls from several processes wait for each other. A call that fails stops what it started. `on_progress` gets a
    line before each long step.

    Raises:
        ConfigurationError: no Java, a given port is busy, or a server ended while starting (with the end of its log).
        TransientError: a server did not answer in `START_TIMEOUT_S`, or the Java parts could not be fetched.
    """
    progress = on_progress or (lambda _line: None)
    files = StackFiles(state_dir)
    with files.locked(lambda: progress("waiting for another process that starts or stops this stack")):
        before = files.read()
        last = before.ports.model_dump() if before else files.last_ports()
        used = before.used_ports if before else {}
        ports = choose_ports({"kafka": kafka_port, "registry": registry_port}, used, last)
        state = StackState(
            kafka_bootstrap_servers=f"{HOST}:{ports.kafka}",
            schema_registry_url=registry_server.url(ports.registry),
            ports=ports,
            **(before.servers if before else {}),
        )
        try:
            state = _start_missing(state, files, progress)
            _wait_until_healthy(state, files)
        except BaseException:  # Ctrl-C as well: nothing stays behind that no file records
            _undo(files, before)
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
        files.remove_state()
        if delete_data:
            files.remove_data()
    return bool(running)


def status(state_dir: Path) -> StackStatus:
    """State of the stack of `state_dir`, without changing anything."""
    state = StackFiles(state_dir).read()
    servers = state.servers if state else {}
    kafka_healthy = "kafka" in servers and kafka_broker.is_healthy(servers["kafka"].port)
    registry_healthy = "registry" in servers and registry_server.is_healthy(servers["registry"].port)
    return StackStatus(state, kafka_healthy, registry_healthy)


def _start_missing(state: StackState, files: StackFiles, progress: Progress) -> StackState:
    """Start what `state` has no process for; each is recorded as soon as it exists."""
    if state.kafka is not None and state.registry is not None:
        return state
    parts = jars.stack_parts(progress)
    java = find_java()
    if state.registry is None:
        progress(f"starting the Schema Registry on port {state.ports.registry}")
        registry = registry_server.start(java, parts.registry, files.folder, port=state.ports.registry, log=files.registry_log)
        state = state.model_copy(update={"registry": registry})
        files.write(state)
    if state.kafka is None:
        progress(f"starting Kafka on port {state.ports.kafka}")
        kafka = kafka_broker.start(java, parts.kafka, files.folder, ports=state.ports, log=files.kafka_log)
        state = state.model_copy(update={"kafka": kafka})
        files.write(state)
    return state


def _wait_until_healthy(state: StackState, files: StackFiles) -> None:
    """Return when both answer; raise when one ends or time is up."""
    waiting = {
        "Kafka": (state.kafka, kafka_broker.is_healthy, files.kafka_log),
        "the Schema Registry": (state.registry, registry_server.is_healthy, files.registry_log),
    }

    def still_waiting() -> bool:
        for name, (server, is_healthy, log) in list(waiting.items()):
            if server is None or find(server) is None:
                raise ConfigurationError(f"{name} ended while starting; the last lines of {log}:\n{last_lines(log)}")
            if is_healthy(server.port):
                del waiting[name]
        return bool(waiting)

    try:
        Retrying(retry=retry_if_result(bool), stop=stop_after_delay(START_TIMEOUT_S), wait=wait_fixed(POLL_S))(still_waiting)
    except RetryError:
        ends = [f"{name}, last lines of {log}:\n{last_lines(log)}" for name, (_, _, log) in waiting.items()]
        raise TransientError(
            f"no answer in {START_TIMEOUT_S} s: run `game-events stack down`, then try again\n" + "\n".join(ends)
        ) from None


def _undo(files: StackFiles, before: StackState | None) -> None:
    """Stop what was started since `before`."""
    state = files.read()
    if state is None:
        return
    kept = before.servers if before else {}
    stop([server for name, server in state.servers.items() if name not in kept])
    if kept:
        files.write(state.model_copy(update={"kafka": kept.get("kafka"), "registry": kept.get("registry")}))
    else:
        files.remove_state()
