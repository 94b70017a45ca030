"""One Apache Kafka broker in KRaft mode (broker and controller in one process), on the loopback address only.

Delivery: it writes to the page cache as any Kafka does; records survive a killed broker, not a power cut.
"""

import base64
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from game_events.errors import ConfigurationError
from game_events.stack.ports import HOST, Ports, listens
from game_events.stack.server_process import ServerProcess, spawn

#: 350 MB are resident with this heap; the log cleaner alone asks for 128 MB.
HEAP = "512m"
FORMAT_TIMEOUT_S = 60
HEALTH_TIMEOUT_S = 5
NODE_ID = 1
LOG4J = Path(__file__).with_name("log4j2.xml")
#: Relative to the stack's folder, the working directory, as its path may hold any characters.
DATA = Path("data/kafka")
PROPERTIES = Path("data/server.properties")
#: Fast to start: shared class data, no parallel collector on a small heap.
JVM_OPTIONS = (f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")


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


def start(
    java: Path, jars: Path, folder: Path, *, ports: Ports, log: Path, conf: Mapping[str, str] | None = None
) -> ServerProcess:
    """Start the broker with the jars of a folder; a new data folder is formatted, ConfigurationError if it cannot be.

    `conf`: its settings; None: `properties`.
    """
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={value}\n" for key, value in (conf or properties(ports)).items()]
    (folder / PROPERTIES).write_text("".join(lines))
    command = [str(java), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={LOG4J.as_uri()}", "-cp", f"{jars}/*"]
    if not (folder / DATA / "meta.properties").exists():
        _format(command, folder)
    return spawn([*command, "kafka.Kafka", PROPERTIES.as_posix()], port=ports.kafka, cwd=folder, log=log)


def _format(command: list[str], folder: Path) -> None:
    cluster_id = "g" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # must not begin with a hyphen
    arguments = ["--config", PROPERTIES.as_posix(), "--cluster-id", cluster_id, "--ignore-formatted"]
    answer = subprocess.run(
        [*command, "kafka.tools.StorageTool", "format", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=FORMAT_TIMEOUT_S,
        check=False,
    )
    if answer.returncode != 0:
        output = (answer.stdout + answer.stderr).strip()[-2000:]
        raise ConfigurationError(f"Kafka cannot format its data folder {folder / DATA}:\n{output}")


def is_healthy(port: int) -> bool:
    """Whether the broker answers a request for metadata and counts itself as alive."""
    if not listens(port):  # spares librdkafka's own complaints while the broker starts
        return False
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
    try:
        return bool(client.list_topics(timeout=HEALTH_TIMEOUT_S).brokers)
    except KafkaException:
        return False
