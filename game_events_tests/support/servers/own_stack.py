"""A stack of a test's own, whose broker can be killed."""

from __future__ import annotations

from pathlib import Path

import psutil

from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.local_stack import StackState


class OwnStack:
    """Runs from the beginning; `local_stack.down` ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: StackState = local_stack.up(folder)

    def kill(self) -> None:
        """End the broker, without its knowledge."""
        broker = psutil.Process(self.state.kafka.pid)
        broker.kill()
        broker.wait(30)

    def start(self) -> None:
        """Start the broker again, at its address and on its data."""
        addresses = self.state.kafka_bootstrap_servers
        self.state = local_stack.up(self.folder)
        assert self.state.kafka_bootstrap_servers == addresses
