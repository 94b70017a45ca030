"""Output of commands: text for people (tables on a terminal, plain lines in a pipe), one JSON object for programs.

Commands never print by themselves. With ``--json`` everything for people goes to stderr, and the last line of stdout is the
JSON object.

Options that several commands share.
"""

import csv
import json
import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from game_events.config.logging import PROGRESS_LOGGER
from game_events.errors import ConfigurationError

#: Characters of a cell that can be read: narrower columns are unreadable.
CELL_CHARS = 12
#: Joiners within words and emoji are as they should be.
_JOINERS = "\u200c\u200d"


def harmless(text: str) -> str:
    r"""A text that somebody else may have written, in one line, for a terminal.

    Control characters (cursor, screen, clipboard, direction of text, new lines) are shown as their escapes (`\x1b`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text)


def indented(text: str) -> str:
    """A text of several lines for a terminal: all but the first begin with two spaces."""
    return "\n  ".join(map(harmless, text.split("\n")))


class _UnixLines:
    """Rows of a CSV writer, with the line end of Unix. Only from CR LF does it know that a value with a CR needs quotes."""

    def write(self, row: str) -> None:
        sys.stdout.write(row.removesuffix("\r\n") + "\n")


class Output:
    """One command's output."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line for a person: it may hold brackets that mean nothing, and what somebody else has written.

        Further lines of a text are indented, so that none of them looks like one that the command has said.
        """
        self._console.print(indented(text), markup=False)

    def step(self, title: str, text: str = "") -> None:
        """A line that begins with a title, apart from what was said before."""
        self._console.print(Text.assemble("\n", (harmless(title), "bold"), harmless(text)))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, wide: bool = False) -> None:
        """A table for a person: numbers to the right, thousands apart.

        `wide`: there may be more columns than fit: then each row is a block, a line for each column.
        """
        cells = [[_cell(value) for value in row] for row in rows]
        names = [harmless(column) for column in columns]
        if wide and rows and not self._fits(names, cells):
            self._one_by_one(names, cells)
            return
        table = Table(title=Text(harmless(title)), title_justify="left", title_style="bold", header_style="bold")
        _add_columns(table, names, rows)
        for line in cells:
            table.add_row(*map(Text, line))
        self._console.print(table)

    def _fits(self, names: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
        """Whether every column has room for `CELL_CHARS` of its name and values."""
        widths = [max(len(name), *(len(line[index]) for line in cells)) for index, name in enumerate(names)]
        return sum(min(width, CELL_CHARS) + 3 for width in widths) + 1 <= self._console.width

    def _one_by_one(self, names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        longest = max(map(len, names))
        for number, line in enumerate(cells, 1):
            self._console.print(Text(f"row {number}", "bold"))
            for name, cell in zip(names, line, strict=True):
                self._console.print(Text(f"  {name:<{longest}}  {cell}".rstrip()))

    def csv(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows for programs, as they come, with the columns' names first: RFC 4180, on stdout, in UTF-8; nested values as JSON.

        Values are as they are. One that a spreadsheet takes for a formula stays so: a sign before it would be part of it.
        """
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict")
        writer = csv.writer(_UnixLines())
        writer.writerow(columns)
        writer.writerows([nested_as_json(value) for value in row] for row in rows)
        sys.stdout.flush()

    def result(self, body: Mapping[str, object], *, success: bool = True) -> None:
        """The command's result, for programs; nothing without ``--json``. JSON has no NaN: it is the text `"NaN"`.

        Without success the command ends here, with exit code 1.
        """
        if self._json:
            print(_json(body), flush=True)
        if not success:
            raise typer.Exit(1)

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
                    record.is_shown = True  # the log on stderr leaves it out
                    if terminal:
                        status.update(Text(f"{what}: {harmless(record.getMessage())}"))
                    else:
                        self.say(f"  {record.getMessage()}")

            handler = Show()
            logger.addHandler(handler)
            try:
                yield
            finally:
                logger.removeHandler(handler)
                logger.setLevel(level)


def _are_numbers(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else harmless(str(value))


def nested_as_json(value: object) -> object:
    """A list, struct or map as the text of its JSON; every other value as it is."""
    return _json(value, escaped=False) if isinstance(value, list | tuple | dict) else value


def _json(value: object, *, escaped: bool = True) -> str:
    try:
        return json.dumps(value, default=str, allow_nan=False, ensure_ascii=escaped)
    except ValueError:
        return json.dumps(_finite(value), default=str, allow_nan=False, ensure_ascii=escaped)


def _finite(value: object) -> object:
    """NaN and infinities as texts, as everywhere in this project."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def words(given: list[str] | None) -> list[str]:
    """Words of an option that may be repeated, hold several separated by commas, or both."""
    return [word.strip() for text in given or [] for word in text.split(",") if word.strip()]


Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is one JSON object.")]


def since(text: str | None, now: datetime | None = None, option: str = "--since") -> datetime | None:
    """`30m`, `12h`, `1d`, `2w` before now; or an ISO date or time (without a zone: UTC).

    Raises:
        ConfigurationError: it is neither; the message shows what it may be.
    """
    if text is None:
        return None
    length = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    try:
        if length:
            return (now or datetime.now(UTC)) - timedelta(**{_UNITS[length[2]]: int(length[1])})
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{option}: {text!r} is no time: 30m, 12h, 1d, 2w, or 2026-03-01T12:00") from None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _add_columns(table: Table, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Add the columns of some rows to a table: numbers to the right."""
    for index, name in enumerate(names):
        is_numeric = _are_numbers([row[index] for row in rows])
        table.add_column(Text(name), justify="right" if is_numeric else "left", overflow="fold")
