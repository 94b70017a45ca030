"""Error classes: the type decides whether a retry can help; and texts of messages.

A message names what happened, where (``topic[partition]@offset``, ``table@version``) and what to do. All classes can be
pickled, as Spark's workers return them.
"""

import difflib
from collections.abc import Sequence


class GameEventsError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigurationError(GameEventsError):
    """A setting, a missing program or wrong credentials must be corrected first."""


class ExtensionError(ConfigurationError):
    """A user-defined function (setting `extensions`) failed, or returned what cannot be stored."""


class UserCodeError(ExtensionError):
    """A Spark job with user-defined code, or SQL of the settings, failed at a row: perhaps of one game."""


class TransientError(GameEventsError):
    """The broker, registry or storage did not answer in time: the same call may succeed later."""


class DataError(GameEventsError):
    """The data cannot be processed safely (a registry that was reset, a topic that was re-created)."""


class LostFileError(DataError):
    """A file of a table is gone or damaged; other tables are not concerned."""


class UnreadableTableError(DataError):
    """A table has features of Delta with which its files alone do not say its rows."""


class ConflictError(TransientError):
    """A concurrent run committed first and nothing of this one is visible: plan again from the table's progress."""


class ReadOnlyError(Exception):
    """Something was to be changed, or Spark was needed, where a caller only looks whether there is work.

    No `GameEventsError`, so that nothing reports it as a failure of one table.
    """


#: Classes of what a signal raises, by their names: Dagster's is not imported here.
STOPS = frozenset({"KeyboardInterrupt", "SystemExit", "DagsterExecutionInterruptedError"})


def stop_of(error: BaseException) -> BaseException | None:
    """The stop by a signal that an error is, or that it came of; None: it is no stop.

    A signal in the middle of a call into Spark's JVM leaves an answer there, which the next call takes for its own. Its error
    may be of any class: the stop is in the chain of those before it.
    """
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in STOPS:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None if isinstance(error, Exception) else error


def first_line(error: BaseException) -> str:
    """The first line of an error's message (Spark's continue with the JVM's stack), else the name of its class.

    Of an error from Java it is the line with the cause: py4j's own first line only names the call.
    """
    lines = [line.strip().removeprefix(":").lstrip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("An error occurred while calling")]
    return next(iter(causes or lines), type(error).__name__)


def first_few(items: Sequence[object], number: int, between: str = "; ") -> str:
    """The first items as text, and how many there are besides."""
    more = [f"and {len(items) - number} more"] if len(items) > number else []
    return between.join([*map(str, items[:number]), *more])


#: Columns that a message names.
COLUMNS_SHOWN = 12


def some_columns(names: Sequence[str], wanted: str = "") -> str:
    """Some columns as text, and how many there are besides; a table may have hundreds.

    Those most like `wanted` come first, those of the pipeline itself (`_batch`) last.
    """
    alike = difflib.get_close_matches(wanted, names, COLUMNS_SHOWN, cutoff=0.3) if wanted else []
    others = sorted((name for name in names if name not in alike), key=lambda name: name.startswith("_"))
    shown = [*alike, *others][:COLUMNS_SHOWN]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


#: Precedes text from a user-defined function or Spark, which may quote rows.
QUOTED = " Its message: "


def without_quotes(text: str) -> str:
    """A message without the text that may quote rows, as tables keep it."""
    return text.partition(QUOTED)[0]


def folded(name: str) -> str:
    """A name in the form in which Spark and Delta compare names: two names are one column's if this is the same.

    Capital letters do not count, by Unicode's mapping to lower case (Java's `toLowerCase(Locale.ROOT)`): the micro sign and the
    Greek mu differ, so do sharp s and ss, final and other sigma, long and other s, which `str.casefold` makes one. The Kelvin
    sign is a k.
    """
    return name.lower()


def many(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
