"""What is killed, and how it comes back: a stack of its own, a producer, drivers over one lakehouse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from deltalake import DeltaTable

from game_events.config.settings import Settings, load_settings
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.server_process import find
from game_events_tests.scenarios.chaos.account import Account, Kill
from game_events_tests.scenarios.chaos.declared import AT_FIRST, settings_of
from game_events_tests.scenarios.chaos.processes import Driver, kill_one, start
from game_events_tests.support.servers.small_jvm import OF_A_COMMAND

SECRET = "planted-5eCr3t-c4a05"
#: A driver that is not through by then hangs.
HANGS_S = 240.0
LOOK_S = 0.1
#: A loop comes to each of its failpoints within some cycles, if at all.
POINT_S = 120.0


class Arena:
    """The processes of one chaos run."""

    def __init__(self, folder: Path, seed: int, rate: float, say: Callable[[str], None]) -> None:
        self.folder, self.seed, self.rate, self.say = folder, seed, rate, say
        self.draw = Random(f"chaos/{seed}")  # noqa: S311 - simulation, no secrets
        self.account = Account(seed)
        self.began = time.monotonic()
        self.loop: Driver | None = None
        self._producer: subprocess.Popen[bytes] | None = None
        self._producers = 0
        state = local_stack.up(folder)
        self._chosen: dict[str, Any] = {
            "kafka_bootstrap_servers": state.kafka_bootstrap_servers,
            "schema_registry_url": state.schema_registry_url,
            "lakehouse": str(folder / "lakehouse"),
            "state_dir": str(folder),
            "spark_master": "local[2]",
            "max_records_per_batch": 20_000,
            "poll_interval_s": 0.2,
            "gold_interval_s": 1,
            "mode": "production",
            "retry_delay_s": 0.5,
            "allow_bronze_full_refresh": True,
            # Replaced files go after a minute: a reader has its snapshot for as long.
            "every_version_h": 0.02,
            "replaced_files_h": 0.02,
            "derived_replaced_files_h": 0.02,
        }
        self.definitions = AT_FIRST

    @property
    def environment(self) -> dict[str, str]:
        """Of the drivers and the producer."""
        login = {"schema_registry_user": "chaos", "schema_registry_password": SECRET}
        told = self._chosen | settings_of(self.definitions) | login | {"spark_conf": OF_A_COMMAND}
        return {f"GAME_EVENTS_{name.upper()}": _as_variable(value) for name, value in told.items()}

    def settings(self) -> Settings:
        """As the drivers have them, but for the password."""
        return load_settings(**self._chosen, **settings_of(self.definitions))

    # --- coming (back)

    def start_producer(self) -> None:
        """A new one; its waves are others than those of the one before."""
        log = self.folder / f"producer-{self._producers}.log"
        command = [sys.executable, "-m", "game_events_tests.scenarios.chaos.producing"]
        words = [str(self.seed), str(self.rate), str(self._producers * 1_000)]
        with log.open("wb") as out:
            self._producer = subprocess.Popen(
                [*command, *words], env=os.environ | self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        self._producers += 1

    def stop_producer(self) -> None:
        """It finishes the wave under way."""
        if self._producer is not None:
            self._producer.send_signal(signal.SIGTERM)
            self._producer.wait(HANGS_S)

    def start_loop(self, crash_at: str | None = None) -> None:
        """`game-events run --continuous`; of one that ended by itself the code is noted."""
        if self.loop is not None and not self.loop.alive:
            self._note_exit(self.loop)
        self.loop = start("loop", ["run", "--continuous", "--json"], self.environment, self.folder / "home", crash_at)

    def command(self, arguments: Sequence[str], crash_at: str | None = None) -> Driver:
        """Another driver beside the loop, as on another machine: with a Dagster of its own."""
        return start(arguments[0], arguments, self.environment, self.folder / "elsewhere", crash_at)

    def _note_exit(self, driver: Driver) -> None:
        code = driver.process.returncode
        if code != -signal.SIGKILL:
            self.account.note_exit(f"{driver.name}: {code}")

    # --- looking

    def bronze_version(self) -> int:
        """-1 before there is a table."""
        uri = f"{self.folder}/lakehouse/bronze_events"
        return DeltaTable(uri).version() if DeltaTable.is_deltatable(uri) else -1

    def newest_commit(self) -> Path | None:
        """Of all tables the entry of a log that was written last."""
        logs = (self.folder / "lakehouse").glob("*/_delta_log/*.json")
        return max(logs, key=lambda f: f.stat().st_mtime_ns, default=None)

    def last_commit(self) -> str:
        """The kind of table whose log changed last: how far the drivers were."""
        newest = self.newest_commit()
        if newest is None:
            return "before any commit"
        name = newest.parent.parent.name
        kind = next((k for k in ("silver", "gold_unified", "gold") if name.startswith(k)), name)
        return f"after a commit to {kind}"

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = HANGS_S) -> float:
        """Seconds until something is so; a loop that ended meanwhile is started again."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert waited < timeout_s, f"{what}: not within {timeout_s:.0f} s\n{self.loop.said() if self.loop else ''}"
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def progress(self, what: str) -> float:
        """Seconds until bronze has another commit than now, with loops started again that ended."""
        version = self.bronze_version()

        def moved() -> bool:
            if self.loop is not None and not self.loop.alive:
                self.start_loop()
            return self.bronze_version() > version

        return self.wait_for(moved, what)

    # --- killing

    def note(self, victim: str, where: str) -> None:
        """One kill."""
        self.account.kills.append(Kill(round(time.monotonic() - self.began, 1), victim, where))
        self.say(f"kill {len(self.account.kills)}: {victim}, {where}")

    def kill_driver(self) -> None:
        """The loop's Python, at whatever it does."""
        assert self.loop is not None
        where = self.last_commit()
        self.loop.kill()
        self.note("driver", where)
        self.start_loop()

    def kill_jvm(self) -> None:
        """Spark's JVM: the driver has to notice, and end with an error."""
        loop = self.loop
        assert loop is not None
        self.wait_for(lambda: loop.jvm() or not loop.alive, "a JVM")
        found, below, where = loop.jvm(), loop.tree(), self.last_commit()
        if found is None or kill_one([found], self.draw) is None:
            return
        self.note("JVM", where)
        self.wait_for(lambda: not loop.alive, "the end of a driver whose JVM was killed")
        loop.end_rest(below)
        self.start_loop()

    def kill_worker(self) -> None:
        """A Python worker of Spark; the loop repeats the job."""
        loop = self.loop
        assert loop is not None
        self.wait_for(lambda: loop.workers() or not loop.alive, "a worker")
        where = self.last_commit()
        if kill_one(loop.workers(), self.draw) is not None:
            self.note("worker", where)

    def kill_broker(self) -> None:
        """The broker, which comes back on its data and its port."""
        self._kill_server("broker")

    def kill_registry(self) -> None:
        """The registry likewise."""
        self._kill_server("registry")

    def _kill_server(self, victim: str) -> None:
        state = local_stack.up(self.folder)
        process = find(state.kafka if victim == "broker" else state.registry)
        assert process is not None
        where = self.last_commit()
        process.kill()
        process.wait(60)
        self.note(victim, where)
        time.sleep(self.draw.uniform(0, 3))
        local_stack.up(self.folder)

    def kill_producer(self) -> None:
        """The producer in the middle of a wave; another one goes on."""
        assert self._producer is not None
        self._producer.kill()
        self._producer.wait()
        self.note("producer", "in the middle of a wave")
        self.start_producer()

    def kill_at(self, point: str) -> None:
        """The loop, at a failpoint; one that only a worker reached would kill worker after worker."""
        assert self.loop is not None
        if self.loop.alive:  # ended as a user would, so that this is one kill and not two
            before = self.loop
            self.wait_for(lambda: before.jvm() or not before.alive, "a JVM")
            before.process.send_signal(signal.SIGINT)
            before.process.wait(HANGS_S)
        self.start_loop(point)
        loop, below = self.loop, []
        until = time.monotonic() + POINT_S
        while loop.alive and time.monotonic() < until:
            below = loop.tree() or below
            time.sleep(LOOK_S)
        if loop.alive:
            loop.kill()
            self.note("driver", f"it never came to {point}")
        else:
            loop.end_rest(below)
            self.note("driver at a failpoint", point)
        self.start_loop()

    def kill_command(self, arguments: Sequence[str], point: str | None) -> None:
        """Another command beside the loop: killed at a failpoint, or at a random moment of its work."""
        driver = self.command(arguments, point)
        if point is None:
            self.wait_for(lambda: driver.jvm() or not driver.alive, "a JVM of the command")
            time.sleep(self.draw.uniform(1, 8))
        below = driver.tree()
        until = time.monotonic() + HANGS_S
        while point is not None and driver.alive and time.monotonic() < until:
            below = driver.tree() or below
            time.sleep(LOOK_S)
        name = f"{' '.join(w for w in arguments if w != '--json')} beside the loop"
        if driver.alive:
            driver.kill()
            self.note(name, self.last_commit() if point is None else f"never came to {point}")
        elif driver.process.returncode == -signal.SIGKILL:
            driver.end_rest(below)
            self.note(name, str(point))
        else:
            self._note_exit(driver)
            self.say(f"{name} was not killed: it ended with {driver.process.returncode}: {driver.said()[-500:]}")

    def beside(self, arguments: Sequence[str]) -> threading.Thread:
        """A command that nobody kills, beside whatever else happens; how it ended is noted."""

        def work() -> None:
            driver = self.command(arguments)
            driver.process.wait(HANGS_S)
            self._note_exit(driver)

        thread = threading.Thread(target=work, name=arguments[0])
        thread.start()
        return thread

    def close(self) -> None:
        """End everything that was started here."""
        if self._producer is not None and self._producer.poll() is None:
            self._producer.kill()
            self._producer.wait()
        if self.loop is not None and self.loop.alive:
            self.loop.kill()
        local_stack.down(self.folder, delete_data=True)


def _as_variable(value: object) -> str:
    """A setting's value as its environment variable has it."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)
