"""The stack's files: ``stack.json`` while it runs, its last ports, and the lock that serialises changes."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from game_events.config.settings import STACK_STATE_FILE
from game_events.errors import ConfigurationError
from game_events.jvm.private_folders import private_folder
from game_events.stack.ports import Ports
from game_events.stack.server_process import ServerProcess, find


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

    @property
    def used_ports(self) -> dict[str, int]:
        """Ports of its processes by name; the controller is part of Kafka's."""
        used = {name: server.port for name, server in self.servers.items()}
        return used | ({"controller": self.ports.controller} if self.kafka else {})


class StackFiles:
    """Files below ``state_dir/stack``, created at the first write."""

    def __init__(self, state_dir: Path) -> None:
        self._state_file = state_dir.resolve() / STACK_STATE_FILE
        self.folder = self._state_file.parent
        self.kafka_log = self.folder / "logs" / "kafka.log"
        self.registry_log = self.folder / "logs" / "registry.log"
        self._ports_file = self.folder / "ports.json"

    def read(self) -> StackState | None:
        """The recorded state, with those of its processes that still run; None: missing or unreadable."""
        try:
            state = StackState.model_validate_json(self._state_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        return state.model_copy(update={name: None for name, server in state.servers.items() if find(server) is None})

    def write(self, state: StackState) -> None:
        """Record `state`; a reader sees the old or the new one."""
        private_folder(self.folder)
        _replace(self._state_file, state.model_dump_json(indent=2))
        _replace(self._ports_file, state.ports.model_dump_json())

    def remove_state(self) -> None:
        """Forget the processes; data, logs and ports stay."""
        self._state_file.unlink(missing_ok=True)

    def last_ports(self) -> dict[str, int]:
        """The ports of the stack's last run by name, or nothing."""
        with suppress(OSError, ValidationError):
            return Ports.model_validate_json(self._ports_file.read_bytes()).model_dump()
        return {}

    def remove_data(self) -> None:
        """Remove all but the lock, which the caller holds."""
        for name in ("data", "logs"):
            if (self.folder / name).exists():
                shutil.rmtree(self.folder / name)
        self._ports_file.unlink(missing_ok=True)

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


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text + "\n")
    new.replace(path)
