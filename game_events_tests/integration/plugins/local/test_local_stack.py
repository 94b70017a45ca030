"""The local stack against the real broker and registry, each test in a folder of its own."""

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from game_events.config.settings import STACK_STATE_FILE, Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.server_process import ServerProcess, find, free_ports, listens

PROTO = 'syntax = "proto3"; message M { int32 a = 1; }'


@pytest.fixture
def state_dir(tmp_path):
    # A blank and a bracket: paths of users have them.
    folder = tmp_path / "state [1] dir"
    yield folder
    local_stack.down(folder)


def write_record_and_schema(state: local_stack.StackState) -> int:
    admin = AdminClient({"bootstrap.servers": state.kafka_bootstrap_servers})
    admin.create_topics([NewTopic("kept", 2, 1)])["kept"].result(10)
    producer = Producer({"bootstrap.servers": state.kafka_bootstrap_servers})
    producer.produce("kept", b"value", b"key", partition=1)
    assert producer.flush(10) == 0
    with SchemaRegistryClient({"url": state.schema_registry_url}) as registry:
        return registry.register_schema("kept-value", Schema(PROTO, "PROTOBUF"))


def read_schema(state: local_stack.StackState, schema_id: int) -> str:
    with SchemaRegistryClient({"url": state.schema_registry_url}) as registry:
        return registry.get_schema(schema_id).schema_str


def read_record(state: local_stack.StackState) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": state.kafka_bootstrap_servers, "group.id": "g"})
    try:
        consumer.assign([TopicPartition("kept", 1, 0)])
        message = consumer.poll(10)
        return None if message is None else message.value()
    finally:
        consumer.close()


def kill(server: ServerProcess) -> None:
    process = find(server)
    process.kill()
    process.wait(10)


@pytest.mark.scenario
def test_up_starts_both_on_given_ports_down_stops_both_and_data_and_addresses_survive_until_they_are_deleted(state_dir):
    kafka, registry = free_ports(2)
    lines = []
    first = local_stack.up(state_dir, kafka, registry, on_progress=lines.append)
    assert any("Kafka" in line for line in lines)
    assert local_stack.status(state_dir).healthy
    assert Settings(state_dir=state_dir).kafka_bootstrap_servers == first.kafka_bootstrap_servers
    assert Settings(state_dir=state_dir).schema_registry_url == first.schema_registry_url
    given_ports_are_taken_on_the_loopback_address_only(first, kafka, registry)
    schema_id = write_record_and_schema(first)

    # A second one is the same; with other ports it is refused.
    assert local_stack.up(state_dir) == first
    with pytest.raises(ConfigurationError, match=rf"kafka of this stack runs on port {kafka}, not {kafka + 1}.*down"):
        local_stack.up(state_dir, kafka + 1)
    assert local_stack.status(state_dir).healthy

    assert local_stack.down(state_dir) is True
    nothing_of_it_runs(state_dir, first)
    assert local_stack.down(state_dir) is False

    second = local_stack.up(state_dir)
    assert second.ports == first.ports
    assert read_record(second) == b"value"
    assert read_schema(second, schema_id) == PROTO
    local_stack.down(state_dir, delete_data=True)
    assert sorted(path.name for path in (state_dir / "stack").iterdir()) == ["lock"]


def given_ports_are_taken_on_the_loopback_address_only(state, kafka, registry):
    assert (state.ports.kafka, state.ports.registry) == (kafka, registry)
    for server in (state.kafka, state.registry):
        listening = [c for c in psutil.Process(server.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} == {"127.0.0.1"}
        assert {c.laddr.port for c in listening} <= set(state.ports.model_dump().values())


def nothing_of_it_runs(state_dir, before):
    status = local_stack.status(state_dir)
    assert (status.state, status.healthy) == (None, False)
    assert not any(listens(port) for port in before.ports.model_dump().values())
    assert not psutil.pid_exists(before.kafka.pid)
    assert not psutil.pid_exists(before.registry.pid)
    assert "shut down completed" in (state_dir / "stack/logs/kafka.log").read_text()


@pytest.mark.scenario
def test_two_processes_at_once_start_one_that_outlives_them_and_a_killed_half_comes_back_with_data_and_address(state_dir):
    first = started_by_two_processes_at_once(state_dir)
    schema_id = write_record_and_schema(first)

    kill(first.registry)
    status = local_stack.status(state_dir)
    assert (status.kafka_healthy, status.state.registry, status.healthy) == (True, None, False)
    second = local_stack.up(state_dir)
    assert (second.kafka, second.ports) == (first.kafka, first.ports)
    assert second.registry != first.registry
    assert read_schema(second, schema_id) == PROTO

    kill(first.kafka)
    third = local_stack.up(state_dir)
    assert (third.registry, third.ports) == (second.registry, first.ports)
    assert read_record(third) == b"value"


def started_by_two_processes_at_once(state_dir):
    code = (
        "import sys, pathlib; from game_events.plugins.local.servers import local_stack;"
        "print(local_stack.up(pathlib.Path(sys.argv[1])).model_dump_json())"
    )
    command = [sys.executable, "-c", code, str(state_dir)]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(subprocess.run, command, capture_output=True, text=True, check=True) for _ in range(2)]
        answers = [run.result().stdout for run in runs]
    assert answers[0] == answers[1]
    assert local_stack.status(state_dir).healthy
    return local_stack.StackState.model_validate_json(answers[0])


def javas():
    """This process's living Java children."""
    found = psutil.Process().children()
    return {c for c in found if c.status() != psutil.STATUS_ZOMBIE and "java" in c.name()}


@pytest.mark.scenario
def test_a_failed_start_shows_the_log_and_leaves_no_process(state_dir):
    (state_dir / "stack/data/registry").mkdir(parents=True)
    (state_dir / "stack/data/kafka").mkdir(parents=True)
    (state_dir / "stack/data/kafka/meta.properties").write_text("version=1\ncluster.id=x\nnode.id=7\n")
    before = javas()
    with pytest.raises(ConfigurationError, match=r"(?s)Kafka ended while starting.*kafka\.log.*node id 7"):
        local_stack.up(state_dir)
    assert local_stack.status(state_dir).state is None
    assert javas() <= before, "other tests' servers and Spark may run, but nothing new"


@pytest.mark.scenario
def test_a_stale_state_file_is_replaced_and_the_program_that_has_the_pid_now_is_left_alone(state_dir):
    ports = free_ports(3)
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        stale = ServerProcess(pid=bystander.pid, create_time=time.time() - 86_400, port=ports[0])
        state = {
            "kafka_bootstrap_servers": f"127.0.0.1:{ports[0]}",
            "schema_registry_url": local_stack.url(ports[2]),
            "ports": {"kafka": ports[0], "controller": ports[1], "registry": ports[2]},
            "kafka": stale.model_dump(),
            "registry": stale.model_dump(),
        }
        (state_dir / STACK_STATE_FILE).parent.mkdir(parents=True)
        (state_dir / STACK_STATE_FILE).write_text(json.dumps(state))
        (state_dir / STACK_STATE_FILE).with_name("ports.json").write_text(json.dumps(state["ports"]))
        assert local_stack.status(state_dir).state.servers == {}

        fresh = local_stack.up(state_dir)
        assert fresh.ports.model_dump() == state["ports"]
        assert local_stack.status(state_dir).healthy
        assert local_stack.down(state_dir) is True
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("name", ["kafka", "registry"])
def test_a_busy_port_is_named_before_anything_starts(state_dir, name):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} for {name} is busy.*give another port"):
            local_stack.up(state_dir, **{f"{name}_port": port})
    assert local_stack.status(state_dir).state is None


def test_one_port_for_both_is_refused(state_dir):
    (port,) = free_ports(1)
    with pytest.raises(ConfigurationError, match=f"port {port} is given twice"):
        local_stack.up(state_dir, port, port)


def test_looking_and_stopping_where_no_stack_is_makes_no_folder(tmp_path):
    assert local_stack.down(tmp_path / "none") is False
    assert local_stack.status(tmp_path / "none").healthy is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.scenario
def test_a_server_that_does_not_answer_in_time_is_stopped(state_dir):
    with pytest.raises(TransientError, match=r"(?s)no answer in 0\.2 s.*Kafka, last lines of"):
        local_stack.up(state_dir, start_timeout_s=0.2)  # no JVM is that fast
    assert local_stack.status(state_dir).state is None


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigurationError, match="cannot write the state folder"):
        local_stack.up(Path(file))
