"""What commands say: text for people (tables on a terminal, plain lines in a pipe), one JSON object for programs.

Commands never print by themselves. With ``--json`` everything for people goes to stderr, and the last line of stdout is the
JSON object.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from game_events.pipeline.context import PROGRESS_LOGGER


class Output:
    """One command's output."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line for a person, as it is: it may hold brackets that mean nothing."""
        self._console.print(text, markup=False)

    def step(self, title: str, text: str = "") -> None:
        """A line that begins with a title."""
        self._console.print(Text.assemble("\n", (title, "bold"), text))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table for a person: numbers to the right, thousands apart."""
        table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="bold")
        for index, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
        self._console.print(table)

    def csv(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows for programs, as they come, with the columns' names first: RFC 4180, on stdout."""
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        sys.stdout.flush()

    def result(self, body: Mapping[str, object]) -> None:
        """The command's result, for programs; nothing without ``--json``."""
        if self._json:
            print(json.dumps(body, default=str), flush=True)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A spinner with what the pipeline says it is doing; plain lines where there is no terminal."""
        logger = logging.getLogger(PROGRESS_LOGGER)
        level = logger.level
        logger.setLevel(logging.INFO)
        with self._console.status(what) as status:
            terminal = self._console.is_terminal

            class Show(logging.Handler):
                def emit(inner, record: logging.LogRecord) -> None:  # noqa: N805
                    if terminal:
                        status.update(f"{what}: {record.getMessage()}")
                    else:
                        self.say(f"  {record.getMessage()}")

            handler = Show()
            logger.addHandler(handler)
            try:
                yield
            finally:
                logger.removeHandler(handler)
                logger.setLevel(level)
