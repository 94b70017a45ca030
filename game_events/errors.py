"""The one root of this project's errors, and the classes that decide what happens next.

A message says what happened, where (``topic[partition]@offset``, ``table@version``) and what to do about it. Whether
trying again can help is a type, not a flag to parse. All of them pickle: they travel back from Spark's workers.
"""


class GameEventsError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigurationError(GameEventsError):
    """A setting, a missing program or wrong credentials: a person has to change something first."""


class ExtensionError(ConfigurationError):
    """A function of the user's own (setting `extensions`) failed, or gave what cannot be stored: it has to be changed."""


class TransientError(GameEventsError):
    """The broker, registry or storage did not answer in time: the same call may succeed later."""


class DataError(GameEventsError):
    """The data cannot be processed safely (a registry that was reset, a topic that was re-created)."""


class ConflictError(TransientError):
    """A rival run committed first; nothing of ours is visible. Planning again from the table's own progress helps."""


def first_line(error: BaseException) -> str:
    """The first line that an error says: Spark's go on with the JVM's whole stack. One that says nothing is named."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


#: Stands before words that are not this project's, and may quote rows: those of a user's function, or of Spark that runs it.
QUOTED = " It said: "


def without_quotes(text: str) -> str:
    """A text of ours without the words that may quote rows: what tables keep."""
    return text.partition(QUOTED)[0]
