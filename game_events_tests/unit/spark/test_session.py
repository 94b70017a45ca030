"""A session that is begun early: for the same settings only, once, and with its error where the session is needed."""

from __future__ import annotations

import logging
import threading

import pytest

from game_events.config.logging import LIBRARY_LEVELS
from game_events.config.settings import load_settings
from game_events.errors import TransientError
from game_events.spark.session import EarlySession


class Sessions:
    """Makes numbers for sessions; `made`: settings, more configuration, whether for a small run, thread."""

    def __init__(self):
        self.made, self.error = [], None

    def __call__(self, settings, more=None, *, small_run=False):
        if self.error is not None:
            raise self.error
        self.made.append((settings, more, small_run, threading.current_thread().name))
        return len(self.made)


@pytest.fixture
def sessions():
    return Sessions()


@pytest.fixture
def early(sessions):
    return EarlySession(sessions)


def test_what_was_begun_is_taken_once(early, sessions):
    early.begin(load_settings(), small_run=True)
    early.begin(load_settings())
    assert (early.taken_or_new(load_settings(), {}), early.taken_or_new(load_settings(), {})) == (1, 2)
    assert [(small, name) for _, _, small, name in sessions.made] == [(True, "early_session"), (False, "MainThread")]


def test_what_is_taken_later_logs_no_more_than_a_new_one(early, sessions):
    early.begin(load_settings())
    logging.getLogger("py4j").setLevel(logging.DEBUG)
    assert early.taken_or_new(load_settings(), {}) == len(sessions.made)
    assert logging.getLogger("py4j").level == LIBRARY_LEVELS["py4j"]


@pytest.mark.parametrize("other", [({"spark_master": "local[1]"}, {}), ({}, {"spark.x": "y"})])
def test_other_settings_have_a_session_of_their_own(early, sessions, other):
    settings, more = load_settings(**other[0]), other[1]
    early.begin(load_settings(spark_master="local[2]") if other[0] else settings)
    early.taken_or_new(settings, more)
    assert (settings, more, False, "MainThread") in sessions.made


def test_an_error_is_raised_where_the_session_is_needed_and_the_next_attempt_is_a_new_one(early, sessions):
    sessions.error = TransientError("no memory")
    early.begin(load_settings())
    with pytest.raises(TransientError, match="no memory"):
        early.taken_or_new(load_settings(), {})
    sessions.error = None
    assert early.taken_or_new(load_settings(), {}) == len(sessions.made) == 1


def test_on_a_server_nothing_is_begun(early, sessions):
    settings = load_settings(spark_remote="sc://localhost:1")
    early.begin(settings)
    assert early.taken_or_new(settings, {}) == 1
    assert [name for *_, name in sessions.made] == ["MainThread"]
