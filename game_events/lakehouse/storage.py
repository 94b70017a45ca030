"""An object store, or a disk, as the lakehouse: options of delta-rs and Spark, errors, durability.

Credentials are not among the options. delta-rs and Spark's S3A each read them where the provider's own tools do (environment,
profile, the machine's role), in the driver and in every worker, so they are in no plan, setting of Spark or table of ours.

delta-rs raises every error of a store as `OSError`, Spark as a failed job with pages of stack (`spark/failures.py`): only
the text has the cause. Both repeat the request's address and the store's answer, never a credential.

A kernel writes out names and deletions within seconds, and what is in new files within half a minute (Linux:
`vm.dirty_expire_centisecs`). So a power cut takes the newest commits back: their log entries are there, and empty. All readers
take these for commits without changes, and the next run makes the commits again. That is right unless files that the versions
before them name were deleted meanwhile: whoever deletes such files writes out the newer versions first.

In an object store an answered request is durable.
"""

import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import Schema
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import CommitProperties, create_table_with_add_actions

from game_events.config.network import is_loopback
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError, GameEventsError, TransientError

#: Schemes of a lakehouse; Spark needs jars of its own for those that are not S3's (docs/object-store.md).
SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})
S3 = frozenset({"s3", "s3a"})

#: Where no region is named: stores behind an address of their own (MinIO, Ceph, versitygw) take any.
ANY_REGION = "us-east-1"

#: delta-rs asks again so long before it gives up; its own three minutes are longer than a run's retries want to wait.
RETRY_TIMEOUT = "30s"

#: A connection that is not used for so long is closed: each handle has its own, and thousands of handles are kept.
IDLE_TIMEOUT = "5s"

#: Environment variables of AWS's own tools.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

#: Would let two concurrent writers write the same version of a table (delta-rs, "S3 storage backend").
UNSAFE_VARIABLE = "AWS_S3_ALLOW_UNSAFE_RENAME"

#: Would have delta-rs take any certificate.
UNVERIFIED_VARIABLES = tuple(f"{provider}_ALLOW_INVALID_CERTIFICATES" for provider in ("AWS", "AZURE", "GOOGLE"))

#: What delta-rs takes for something else in a path: for a slash, for an escaped character; in an address for its end.
_REWRITTEN = re.compile(r"\\|%[0-9A-Fa-f]{2}")
_REWRITTEN_IN_ADDRESS = re.compile(rf"{_REWRITTEN.pattern}|#|//")

#: Writers of `refuse_unsafe_store`. Each checks for the table before it creates it, so all have to check before the first has
#: created it.
WRITERS = 8


def is_remote(root: str) -> bool:
    """Whether a root is in an object store."""
    return "://" in root and not root.startswith("file://")


def is_s3(root: str) -> bool:
    """Whether a root is in an S3-compatible store."""
    return is_remote(root) and root.partition("://")[0] in S3


def delta_options(settings: Settings) -> dict[str, str]:
    """delta-rs's options for the lakehouse; ConfigurationError if root, endpoint or environment are not safe or not known."""
    root = settings.lakehouse
    scheme, colon, _ = root.partition(":")
    _refuse_rewritten(root)
    if not is_remote(root):
        if colon and scheme in SCHEMES:
            raise ConfigurationError(f"GAME_EVENTS_LAKEHOUSE: {root} is no address of a store: {scheme}://bucket/prefix")
        return {}
    _refuse_unsafe(root, scheme)
    options = {"retry_timeout": RETRY_TIMEOUT, "pool_idle_timeout": IDLE_TIMEOUT}
    return options | _s3_options(settings) if scheme in S3 else options


def _refuse_unsafe(root: str, scheme: str) -> None:
    if scheme not in SCHEMES:
        raise ConfigurationError(f"GAME_EVENTS_LAKEHOUSE: {scheme}:// is not known; use a path or {', '.join(sorted(SCHEMES))}")
    if not urlsplit(root).netloc:
        raise ConfigurationError(f"GAME_EVENTS_LAKEHOUSE: {root} names no bucket: {scheme}://bucket/prefix")
    unverified = [name for name in UNVERIFIED_VARIABLES if _is_on(name)]
    if unverified:
        raise ConfigurationError(
            f"{', '.join(unverified)} is set: whoever is on the way to the store would have its credentials and the tables. "
            "Unset it; an authority of your own belongs to the machine's (docs/object-store.md)"
        )
    if scheme in S3 and _is_on(UNSAFE_VARIABLE):
        raise ConfigurationError(
            f"{UNSAFE_VARIABLE} is set: with it two runs may write the same version of a table, and rows are lost. Unset it; "
            "the store has to take conditional puts (`game-events doctor` tries it)"
        )


def _s3_options(settings: Settings) -> dict[str, str]:
    # A commit is a PUT that succeeds only if there is no such object: of two writers one succeeds.
    options = {"AWS_CONDITIONAL_PUT": "etag"}
    endpoint = endpoint_of(settings)
    if endpoint is not None:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(not settings.storage_path_style).lower()
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    region = region_of(settings)
    if region is not None:
        options["AWS_REGION"] = region
    return options


def _refuse_rewritten(root: str) -> None:
    path = root.partition("://")[2].rstrip("/") if is_remote(root) else root
    part = (_REWRITTEN_IN_ADDRESS if is_remote(root) else _REWRITTEN).search(path)
    if part is not None:
        raise ConfigurationError(
            f"GAME_EVENTS_LAKEHOUSE: {root} has {part[0]!r} in it, with which delta-rs would look for the tables at another "
            "place: choose another name"
        )


def spark_options(settings: Settings) -> dict[str, str]:
    """Spark's settings for the lakehouse of the settings: the same `s3://` addresses that delta-rs takes, read by S3A."""
    if not is_s3(settings.lakehouse):
        return {}
    endpoint = endpoint_of(settings)
    region = region_of(settings)
    conf = {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        # Environment, profile, web identity, container or instance role: the order of AWS's own tools.
        "spark.hadoop.fs.s3a.aws.credentials.provider": ("software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"),
        # The defaults wait for minutes; a run is tried again as a whole.
        "spark.hadoop.fs.s3a.attempts.maximum": "3",
        "spark.hadoop.fs.s3a.retry.limit": "4",
        "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
        # Parquet's footers and column chunks: ranges, not whole files.
        "spark.hadoop.fs.s3a.experimental.input.fadvise": "random",
    }
    if endpoint is not None:
        conf["spark.hadoop.fs.s3a.endpoint"] = endpoint
        conf["spark.hadoop.fs.s3a.path.style.access"] = str(settings.storage_path_style).lower()
        conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https://")).lower()
    if region is not None:
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf


def endpoint_of(settings: Settings) -> str | None:
    """The store's address, None: AWS's own; ConfigurationError if it holds a password, or is plain HTTP though not allowed."""
    endpoint = settings.storage_endpoint or _first(ENDPOINT_VARIABLES)
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigurationError(
            "GAME_EVENTS_STORAGE_ENDPOINT (or AWS_ENDPOINT_URL) must be http(s)://host[:port] without a user or password"
        )
    if parts.scheme == "http" and not settings.storage_allow_http and not is_loopback(parts.hostname):
        raise ConfigurationError(
            f"GAME_EVENTS_STORAGE_ENDPOINT: {endpoint} is not encrypted: use https://, or set "
            "GAME_EVENTS_STORAGE_ALLOW_HTTP=true"
        )
    return endpoint.rstrip("/")


def region_of(settings: Settings) -> str | None:
    """The region to sign for, or None to leave it to the provider's own settings."""
    named = settings.storage_region or _first(REGION_VARIABLES)
    return named or (ANY_REGION if endpoint_of(settings) is not None else None)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "t", "yes", "y", "on")


def _first(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


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
    explained = explain(error, root)
    if explained is not None:
        return explained
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


def refuse_unsafe_store(root: str, options: dict[str, str]) -> str:
    """Let several writers create one table, by the code that creates every table; the result in words. Folders are not probed.

    Every commit relies on the store's conditional put: of two writers of one object, one fails. Older S3-compatible stores
    ignore the condition: the last writer silently wins, and rows are lost.

    Raises:
        ConfigurationError: more than one of them succeeded, or the store refuses access.
        TransientError: the store does not answer.
    """
    if not is_remote(root):
        return "a folder"
    name = f"_probe-{uuid.uuid4()}"
    columns = Schema.from_arrow(pa.schema([("probe", pa.int64())]))
    # With retries a writer that lost would commit the table's version 1.
    once = CommitProperties(max_commit_retries=0)
    together = threading.Barrier(WRITERS)

    def makes(_: int) -> bool:
        together.wait()
        uri = f"{root}/{name}"
        try:
            create_table_with_add_actions(uri, columns, [], mode="error", storage_options=options, commit_properties=once)
        except (DeltaError, OSError) as error:
            known = explain(error, root)
            if known is not None:
                raise known from error
            return False
        return True

    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            won = sum(pool.map(makes, range(WRITERS)))
    finally:
        with store_errors_named(root):
            pafs.PyFileSystem(DeltaStorageHandler(root, options)).delete_dir(name)
    if won != 1:
        raise ConfigurationError(
            f"object store {root}: {won} of {WRITERS} writers created the same table: it ignores the condition of a "
            "conditional put (If-None-Match), so two runs would overwrite each other's commits. Update the store, or use "
            "another"
        )
    return "conditional puts hold"


#: Seconds after which everything is on the disks by itself, with a wide margin.
WRITTEN_OUT_S = 600.0


def write_out(uri: str) -> None:
    """Return once all that this machine has written is on its disks; nothing is done for an object store.

    By one call for all file systems: which files are new is known to Spark's workers, delta-rs and this process together, and a
    call for each file would wait for the disk as often. It also waits for what other programs have written.
    """
    if not is_remote(uri):
        os.sync()


def has_no_content(uri: str) -> bool:
    """Whether a local table's log has entries, and all of them are empty: none was written out before a power cut."""
    sizes = _sizes(uri)
    return bool(sizes) and not any(sizes)


def unopenable(uri: str, error: Exception) -> DataError:
    """What to say of a table that cannot be opened."""
    empty = not is_remote(uri) and not all(_sizes(uri))
    why = ". An entry of its log is empty, as a power cut leaves it" if empty else ""
    return DataError(f"table {uri} cannot be opened: {error}{why}: restore its log, or delete the table to have it rebuilt")


def _sizes(uri: str) -> list[int]:
    """Bytes of a log's entries and checkpoints; others may delete some at this moment."""
    sizes = list[int]()
    for file in Path(uri, "_delta_log").glob("*"):
        if file.name[:20].isdigit():
            with suppress(FileNotFoundError):
                sizes.append(file.stat().st_size)
    return sizes
