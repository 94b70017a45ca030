"""A Spark session that is made while its process still imports what will use it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from pyspark.core import context  # noqa: F401 - all that the thread needs: no two threads import the same
from pyspark.sql import SparkSession

from game_events.config.logging import limit_library_loggers
from game_events.config.settings import Settings
from game_events.spark.session import new_session


class EarlySession:
    """The session of some settings, made by a thread of its own; it ends with the process, wherever the thread is."""

    def __init__(self, settings: Settings, *, small_run: bool) -> None:
        """Begin; `small_run`: as for `new_session`."""
        self.settings = settings
        self._small_run = small_run
        self._made: Future[SparkSession] = Future()
        threading.Thread(target=self._make, name="early_session", daemon=True).start()

    def result(self) -> SparkSession:
        """The session, when it is there; raises what `new_session` raises."""
        return self._made.result()

    def _make(self) -> None:
        try:
            self._made.set_result(new_session(self.settings, small_run=self._small_run))
        except BaseException as error:  # noqa: BLE001 - raised where the session is needed
            self._made.set_exception(error)


_begun: list[EarlySession] = []


def begin(settings: Settings, *, small_run: bool = False) -> None:
    """Begin to make the session of the settings. Not on a Connect server, where there is little to wait for."""
    if not settings.spark_remote and not _begun:
        _begun.append(EarlySession(settings, small_run=small_run))


def taken_or_new(settings: Settings, more: Mapping[str, str] | None = None) -> SparkSession:
    """The session that was begun for the same settings, once; any other one is made now. Raises as `new_session`."""
    early = _begun.pop() if _begun else None
    if early is not None and not more and early.settings == settings:
        session = early.result()
        # Again: Dagster may have configured logging since.
        limit_library_loggers()
        return session
    return new_session(settings, more)
