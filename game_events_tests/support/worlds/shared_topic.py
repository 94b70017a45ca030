"""A topic and its tables that tests of one file share: each test sends waves of its own and leaves every row in its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import Manifest
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.worlds.waves import GAMES, send

if TYPE_CHECKING:
    from game_events_tests.conftest import MakePipeline


class World:
    """One wave of every game, and the run that took it.

    Attributes:
        sent: everything so far.
        whole: the last thing that was seen of it is that everything is in its place; the next test begins with it then.
    """

    def __init__(self, settings: Settings, make_pipeline: MakePipeline) -> None:
        self.settings = settings
        self._make_pipeline = make_pipeline
        self.sent: Manifest = send(settings)
        self.refresh()
        self.whole = True

    def pipeline(self, **overrides: object) -> Pipeline:
        """As a new process has it."""
        return self._make_pipeline(self.settings.model_copy(update=overrides))

    def send(self, version: int = 1, games: tuple[str, ...] = GAMES, records: int = 6, poison: float = 0.25) -> Manifest:
        """One more wave."""
        self.whole = False
        wave = send(self.settings, version=version, games=games, records=records, poison=poison)
        self.sent = self.sent.merge(wave)
        return wave

    def refresh(self, **overrides: object) -> RunReport:
        """A run."""
        self.whole = False
        return refresh(self.pipeline(**overrides))

    def delete(self, table: str) -> None:
        """Somebody removes a table's folder."""
        self.whole = False
        shutil.rmtree(Path(self.settings.lakehouse) / table)

    def restore(self, table: str, version: int) -> None:
        """Somebody restores a table to an older version."""
        self.whole = False
        self._open(table).restore(version)

    def version(self, table: str) -> int:
        """A table's newest version."""
        return self._open(table).version()

    def _open(self, table: str) -> DeltaTable:
        handle = self.pipeline().lakehouse.table(table).open()
        assert handle is not None
        return handle

    def assert_whole(self) -> None:
        """Everything that was sent is in its place, once."""
        assert_books_balance(self.settings, self.sent)
        self.whole = True
