"""An object store as the lakehouse: options of delta-rs and Spark.

Credentials are not among them. delta-rs and Spark's S3A each read them where the provider's own tools do (environment,
profile, the machine's role), in the driver and in every worker, so they are in no plan, setting of Spark or table of ours.
"""

import os
import re
from urllib.parse import urlsplit

from game_events.config.local_addresses import is_loopback
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError

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
_PATH_STYLE = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"


def is_remote(root: str) -> bool:
    """Whether a root is in an object store."""
    return "://" in root and not root.startswith("file://")


def is_s3(root: str) -> bool:
    """Whether a root is in an S3-compatible store."""
    return root.split("://", 1)[0] in S3 if is_remote(root) else False


def delta_options(settings: Settings) -> dict[str, str]:
    """delta-rs's options for the lakehouse; ConfigurationError if root, endpoint or environment are not safe or not known."""
    root = settings.lakehouse
    scheme, colon, _ = root.partition(":")
    _refuse_rewritten(root)
    if not is_remote(root):
        if colon and scheme in SCHEMES:
            raise ConfigurationError(f"GAME_EVENTS_LAKEHOUSE: {root} is no address of a store: {scheme}://bucket/prefix")
        return {}
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
    options = {"retry_timeout": RETRY_TIMEOUT, "pool_idle_timeout": IDLE_TIMEOUT}
    if scheme not in S3:
        return options
    if _is_on(UNSAFE_VARIABLE):
        raise ConfigurationError(
            f"{UNSAFE_VARIABLE} is set: with it two runs may write the same version of a table, and rows are lost. Unset it; "
            "the store has to take conditional puts (`game-events doctor` tries it)"
        )
    # A commit is a PUT that succeeds only if there is no such object: of two writers one succeeds.
    options |= {"AWS_CONDITIONAL_PUT": "etag"}
    endpoint, region = endpoint_of(settings), region_of(settings)
    if endpoint is not None:
        options |= {"AWS_ENDPOINT_URL": endpoint, _PATH_STYLE: str(not settings.storage_path_style).lower()}
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    if region is not None:
        options["AWS_REGION"] = region
    return options


def _refuse_rewritten(root: str) -> None:
    path = root.partition("://")[2].rstrip("/") if is_remote(root) else root
    found = (_REWRITTEN_IN_ADDRESS if is_remote(root) else _REWRITTEN).search(path)
    if found is not None:
        raise ConfigurationError(
            f"GAME_EVENTS_LAKEHOUSE: {root} has {found[0]!r} in it, with which delta-rs would look for the tables at another "
            "place: choose another name"
        )


def spark_options(settings: Settings) -> dict[str, str]:
    """Spark's settings for the lakehouse of the settings: the same `s3://` addresses that delta-rs takes, read by S3A."""
    if not is_s3(settings.lakehouse):
        return {}
    endpoint, region = endpoint_of(settings), region_of(settings)
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
