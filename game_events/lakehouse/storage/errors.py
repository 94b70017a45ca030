"""Errors of object stores and disks as the project's own: fatal for the configuration, or transient.

delta-rs raises every error of a store as `OSError`, Spark as a failed job with pages of stack (`spark/storage_errors.py`): only
the text has the cause. Both repeat the request's address and the store's answer, never a credential.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError

from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.lakehouse.storage.options import is_remote

#: Errors of delta-rs and files, which may be those of a storage.
CARRIERS = (OSError, DeltaError)
#: Texts of a store's own errors, by delta-rs (object_store) and by Spark's S3A; others have nothing to do with a store.
_STORE = re.compile(r"Generic \w+ error|lacked the necessary privileges|not authenticated|fs\.s3a\.|awssdk")
_REFUSED = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|lacked the necessary privileges|not authenticated|AccessDenied|InvalidAccessKeyId|"
    r"SignatureDoesNotMatch|ExpiredToken|InvalidToken|Status Code: 40[13]"
)
#: The last place that clients try is the machine's own address for roles, which does not answer where there are none.
_NO_CREDENTIALS = re.compile(r"NoAuthWithAWSException|Unable to load credentials|NoCredentials|latest/api/token|169\.254\.\d+")
_NO_BUCKET = re.compile(r"NoSuchBucket|UnknownStoreException|ContainerNotFound")
_INCOMPLETE = re.compile(r"must be specified")
_AWAY = re.compile(
    r"error sending request|after \d+ retries|\b5\d\d [A-Z]|\b429 |SlowDown|Status Code: (5\d\d|429)|[Tt]imed? ?out|"
    r"Connect(ion)?[ A-Z]|UnknownHost|AWSClientIOException|Throttl|connection"
)
#: A store's answer in XML, and the last link of a chain of causes.
_ANSWER = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
#: A worker's own error of a store, in the text of Spark's.
_EXPLAINED = re.compile(r"game_events\.errors\.(ConfigurationError|TransientError): (object store .*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Characters of what a storage or Spark says, in a message.
LONGEST = 300

#: Texts of Linux and Rust's standard library (`os error N`).
FULL = ("No space left on device", "Disk quota exceeded", "os error 28", "os error 122")
DENIED = ("Read-only file system", "Permission denied", "Operation not permitted", "os error 30", "os error 13)", "os error 1)")
_STAYS = "What was committed stays, nothing else is visible, and the next run goes on from there"


def explain(error: BaseException, root: str) -> GameEventsError | None:
    """The project's error for one of an object store; None for any other."""
    text = _COLOUR.sub("", str(error))
    if not is_remote(root) or not _STORE.search(text):
        return None
    said = _EXPLAINED.search(text)
    if said is None:
        return _by_cause(f"object store {root}", text)
    return (TransientError if said[1] == "TransientError" else ConfigurationError)(said[2])


def _by_cause(what: str, text: str) -> GameEventsError | None:
    if _NO_BUCKET.search(text):
        return ConfigurationError(f"{what}: there is no such bucket: make it, or correct GAME_EVENTS_LAKEHOUSE")
    if _NO_CREDENTIALS.search(text):
        return ConfigurationError(
            f"{what}: no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, for this "
            "process and Spark's workers (docs/object-store.md)"
        )
    if _REFUSED.search(text):
        return ConfigurationError(
            f"{what} refuses access ({_words(text)}): check the credentials of the environment (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role) and what they may do (docs/object-store.md)"
        )
    if _INCOMPLETE.search(text):
        return ConfigurationError(f"{what} cannot be used ({_words(text)}): set what the address lacks (docs/object-store.md)")
    return _unreachable(what, text)


def _unreachable(what: str, text: str) -> TransientError | None:
    if _AWAY.search(text):
        return TransientError(
            f"{what} does not answer as it should ({_words(text)}): is it up, and is GAME_EVENTS_STORAGE_ENDPOINT right? What "
            "was committed stays, the next run goes on from there"
        )
    return None


def _words(text: str) -> str:
    """The store's answer, or the last cause, in one line."""
    answer = _ANSWER.search(text)
    if answer:
        return ": ".join(part for part in answer.groups() if part)[:LONGEST]
    caused = [line for line in text.splitlines() if "Caused by:" in line]
    lines = [line.strip(" \t↳-") for line in (caused or text.splitlines()) if line.strip(" \t↳-")]
    return (lines[-1] if lines else "no words")[:LONGEST]


def storage_error(error: BaseException, root: str) -> GameEventsError | None:
    """The project's error for one that storage caused; None for any other.

    Returns a TransientError if the storage is full, a ConfigurationError if the right to write is missing.
    """
    found = explain(error, root)
    if found is not None:
        return found
    said = next((line.strip() for line in str(error).splitlines() if _has(line, FULL + DENIED)), "")[:300]
    if _has(said, FULL):
        return TransientError(
            f"no space is left, below {root} or where Spark keeps what it spills (spark.local.dir): {said}. {_STAYS}. Free "
            "some space: files that no version needs any more are removed by maintenance (vacuum)"
        )
    if _has(said, DENIED):
        return ConfigurationError(
            f"{root} cannot be read or written: {said}. {_STAYS}. Give this user the right to write "
            "there, or mount it for writing"
        )
    return None


@contextmanager
def store_errors_named(
    root: str,
    carriers: tuple[type[Exception], ...] = CARRIERS,
    convert: Callable[[BaseException, str], GameEventsError | None] = explain,
) -> Iterator[None]:
    """Convert errors of the object store below a root into the project's own; every other error is raised unchanged.

    `carriers`: types of errors that may be converted. `convert`: error, root -> the project's error; None for any other.

    Raises:
        TransientError, ConfigurationError: as `convert` returns them.
    """
    try:
        yield
    except carriers as error:
        known = convert(error, root)
        if known is None:
            raise
        raise known from error


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
