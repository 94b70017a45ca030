"""Safe by default: certificates are verified, servers are of this machine, names lead nowhere, nothing foreign is executed."""

from __future__ import annotations

import ipaddress

import psutil
from pyspark.sql import SparkSession

from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.unit.test_safety import listening


def test_the_local_broker_and_registry_and_spark_listen_on_this_machine_only(stack: StackState, spark: SparkSession):
    assert spark.range(1).count() == 1
    started = [psutil.Process(server.pid) for server in (stack.kafka, stack.registry) if server is not None]
    assert len(started) == 2
    for process in [*started, psutil.Process()]:
        found = listening(process)
        assert found, process.name()
        assert {ip for ip in found if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback} == set()
