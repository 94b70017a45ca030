"""The loop's thread and an interrupt in the thread that waits for it."""

import signal
import threading
from types import SimpleNamespace

import pytest

from game_events.config.network import begin_call
from game_events.orchestration import continuous
from game_events.orchestration.continuous import end_loop
from game_events.orchestration.keys import DEFAULT


class InterruptError(Exception):
    """What Dagster raises in the main thread, under another name."""


class SlowLoop:
    """Ends a while after it was told to, or when its Spark job is ended."""

    def __init__(self, *, obeys):
        self.stop, self.obeys, self.abandoned = threading.Event(), obeys, threading.Event()
        self.report = SimpleNamespace(state="running", why="")

    def run(self):
        self.stop.wait(60)
        if not self.obeys:
            self.abandoned.wait(60)
        threading.Event().wait(0.3)
        self.report.state = "stopped"

    def abandon(self):
        self.abandoned.set()


@pytest.fixture
def interrupts():
    """A signal that raises, as Dagster's handler does."""

    def handler(_signal, _frame):
        raise InterruptError

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("obeys", [True, False])
def test_after_an_interrupt_the_end_of_the_step_under_way_is_waited_for(obeys):
    loop = SlowLoop(obeys=obeys)
    work = begin_call(loop.run, "continuous")
    throttle = SimpleNamespace(due=lambda **_options: None)
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    with pytest.raises(InterruptError):
        list(continuous._events_while(None, loop, work, throttle, DEFAULT))
    assert end_loop(loop, work, grace_s=2.0)
    assert loop.report.state == "stopped"
    assert loop.abandoned.is_set() is not obeys
    timer.join()
