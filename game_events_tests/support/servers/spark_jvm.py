"""The JVM that the tests share, held by a process of its own.

``python -m game_events_tests.support.servers.spark_jvm FILE OWNER``

It writes how to reach it into FILE, and ends with SIGTERM or when the process with the pid OWNER has gone.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import psutil

from game_events_tests.support.servers.shared_servers import Gateway
from game_events_tests.support.servers.spark_kinds import classic

#: Seconds between two looks for the owner.
LOOK_S = 2.0
#: The processes that share it run their jobs at the same time, each with as many partitions as on two cores.
MASTER = "local[4]"
CONF = {
    "spark.default.parallelism": "2",
    "spark.driver.memory": "3g",
}


def main(file: Path, owner: str) -> None:
    """Hold it."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with classic(MASTER, CONF) as session:
        gateway = session.sparkContext._gateway.gateway_parameters
        written = file.with_suffix(".new")
        written.touch(mode=0o600)
        written.write_text(Gateway(port=gateway.port, token=gateway.auth_token).model_dump_json())
        written.rename(file)
        while not ended.wait(LOOK_S):
            if owner and not psutil.pid_exists(int(owner)):
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
