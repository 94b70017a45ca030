"""What tests of several modules here share."""

import pytest

from game_events.decoding import compiler


@pytest.fixture
def own_child(monkeypatch):
    """A child process of this test alone."""
    child = compiler._Child()
    monkeypatch.setattr(compiler, "_CHILD", child)
    yield child
    child.end()
