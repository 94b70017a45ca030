"""One Apicurio Registry, which speaks the Confluent Schema Registry's API, on the loopback address only.

Its data are an H2 file database: they survive a restart and a killed server.
"""

import http.client
import json
from pathlib import Path

from game_events.config.background import within
from game_events.stack.ports import HOST
from game_events.stack.server_process import ServerProcess, spawn

HEAP = "384m"
HEALTH_TIMEOUT_S = 5
API = "/apis/ccompat/v7"
#: Below the stack's folder, which is the working directory. H2 wants the ``./``.
DATABASE = "./data/registry/h2"


def url(port: int) -> str:
    """The registry's address for clients."""
    return f"http://{HOST}:{port}{API}"


def start(java: Path, distribution: Path, folder: Path, *, port: int, log: Path) -> ServerProcess:
    """Start the registry of an unpacked distribution; its data are below the stack's folder."""
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
    jvm = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    command = [str(java), *jvm, *(f"-D{key}={value}" for key, value in options.items()), "-jar", str(runner)]
    return spawn(command, port=port, cwd=folder, log=log)


def is_healthy(port: int) -> bool:
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
