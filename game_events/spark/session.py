"""A Spark session with this project's settings, on this machine, a cluster, or a Connect server.

The Python workers of the server that `game-events up` starts live longer than a session, and keep the modules that they have
imported. So no session is made there once a file of code was edited (`edited_since_up`).
"""

import logging
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from game_events.config.logging import limit_library_loggers
from game_events.config.network import UNIX_SOCKET, begin_call
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, first_few
from game_events.spark.config import server_only_settings, session_config, shares_python_environment, ship_code, spark_config
from game_events.spark.connect import close_session, connect

log = logging.getLogger(__name__)

#: File below the state folder that the server of `game-events up` writes when it is ready, if its sessions share workers.
READY_FILE = Path("spark") / "connect.ready"

#: Folders of Python's own modules and of installed libraries, and their names elsewhere (a user's own, a distribution's): these
#: modules are believed not to change while a server runs.
_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED_NAMES = frozenset({"site-packages", "dist-packages"})

#: Files that a message names.
_NAMED = 3


def new_session(settings: Settings, more: Mapping[str, str] | None = None) -> SparkSession:
    """The session of the settings, with `more` configuration above theirs; its workers can import this project.

    Raises:
        ConfigurationError, TransientError: Spark cannot be started or reached, or code was edited since `game-events up` began.
    """
    # Again: Dagster may have configured logging since the definitions were loaded.
    limit_library_loggers()
    if settings.spark_remote:
        edited = edited_since_up(settings) if settings.spark_remote.startswith(UNIX_SOCKET) else []
        if edited:
            raise ConfigurationError(
                f"{first_few(edited, _NAMED, ', ')} was edited after `game-events up` had started its Spark server, whose "
                "workers may still have the code from before: start `game-events up` again"
            )
        not_ours = server_only_settings(settings)
        if not_ours:
            # The server of `game-events up`, on this machine, was started with them.
            level = logging.INFO if shares_python_environment(settings) else logging.WARNING
            log.log(level, "spark_remote=set not_used_as_they_are_the_servers=%s", ",".join(not_ours))
        session = connect(settings, session_config(settings) | dict(more or {}))
    else:
        builder = SparkSession.builder
        for name, value in (spark_config(settings) | dict(more or {})).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    try:
        ship_code(session, settings)
    except BaseException:
        # The next use fails in the same way, and gets no session without code on its workers.
        close_session(session)
        raise
    return session


def begin_session(settings: Settings) -> None:
    """Begin to make the session of the settings while this process imports what will use it.

    Whoever needs it calls `new_session`, which waits for this one, as PySpark makes one at a time, or meets its error again.
    """
    if not settings.spark_remote:  # there is little to wait for
        begin_call(partial(new_session, settings), "begin_session")


def edited_since_up(settings: Settings) -> list[str]:
    """Files of code that were edited since the server of `game-events up` was ready: its workers may have the code from before.

    Files of `SPARK_PY_FILES`, and those of this process's modules that are not installed, as workers import the same ones.
    """
    try:
        began_ns = (settings.state_dir / READY_FILE).stat().st_mtime_ns
    except FileNotFoundError:  # no such server, or one that gives each session workers of its own
        return []
    files = {Path(name).expanduser() for name in settings.spark_py_files}.union(_files_of_modules())
    return sorted(str(file) for file in files if file.is_file() and file.stat().st_mtime_ns > began_ns)


def _files_of_modules() -> Iterator[Path]:
    """The file of each module that is not installed; of a module in an archive the archive."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name is None or name.startswith(_INSTALLED) or not _INSTALLED_NAMES.isdisjoint(Path(name).parts):
            continue
        yield next((path for path in (Path(name), *Path(name).parents) if path.is_file()), Path(name))
