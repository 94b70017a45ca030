"""A session that is begun early: for the same settings only, once, and with its error where the session is needed."""

from __future__ import annotations

import logging
import threading

import pytest

from game_events.config.logging import LIBRARY_LEVELS
from game_events.config.settings import load_settings
from game_events.errors import TransientError
from game_events.spark import session
from game_events.spark.session import begin, taken_or_new


@pytest.fixture
def made(monkeypatch):
    """The sessions that were made: settings, whether for a small run, thread."""
    found = []

    def new(settings, more=None, *, small_run=False):
        found.append((settings, more, small_run, threading.current_thread().name))
        return len(found)

    monkeypatch.setattr(session, "new_session", new)
    monkeypatch.setattr(session, "_begun", [])
    return found


def test_what_was_begun_is_taken_once(made):
    begin(load_settings(), small_run=True)
    begin(load_settings())
    assert (taken_or_new(load_settings(), {}), taken_or_new(load_settings(), {})) == (1, 2)
    assert [(small, name) for _, _, small, name in made] == [(True, "early_session"), (False, "MainThread")]


def test_what_is_taken_later_logs_no_more_than_a_new_one(made):
    begin(load_settings())
    logging.getLogger("py4j").setLevel(logging.DEBUG)
    assert taken_or_new(load_settings(), {}) == len(made)
    assert logging.getLogger("py4j").level == LIBRARY_LEVELS["py4j"]


@pytest.mark.parametrize("other", [({"spark_master": "local[1]"}, {}), ({}, {"spark.x": "y"})])
def test_other_settings_have_a_session_of_their_own(made, other):
    settings, more = load_settings(**other[0]), other[1]
    begin(load_settings(spark_master="local[2]") if other[0] else settings)
    taken_or_new(settings, more)
    assert (settings, more, False, "MainThread") in made


def test_an_error_is_raised_where_the_session_is_needed_and_the_next_attempt_is_a_new_one(made, monkeypatch):
    new = session.new_session

    def fails(*_args, **_more):
        raise TransientError("no memory")

    monkeypatch.setattr(session, "new_session", fails)
    begin(load_settings())
    with pytest.raises(TransientError, match="no memory"):
        taken_or_new(load_settings(), {})
    monkeypatch.setattr(session, "new_session", new)
    assert taken_or_new(load_settings(), {}) == len(made) == 1


def test_on_a_server_nothing_is_begun(made):
    begin(load_settings(spark_remote="sc://localhost:1"))
    assert (made, session._begun) == ([], [])
