"""Where the Spark server of `game-events up` is, for runs of the command line.

A file in the state folder says where. Only this user can read the folder. It has the token of the server, so it is there only
while `game-events up` lives.
"""

import hashlib
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, SecretStr, ValidationError

from game_events.config.extensions import load_extensions
from game_events.config.network import UNIX_SOCKET
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings
from game_events.jvm.private_folders import only_mine
from game_events.lakehouse.storage import is_remote
from game_events.spark.config import DEFAULT_JAVA_OPTIONS, PACKAGE, jvm_config
from game_events.spark.connect import CONNECT_MODE, TOKEN_VARIABLE
from game_events.spark.session import edited_since_up

FILE = Path("spark") / "shared.json"
REMOTE_VARIABLE = f"{ENV_PREFIX}SPARK_REMOTE"
#: Seconds until something accepts a connection on this machine.
CONNECT_S = 1.0


class SharedSpark(BaseModel):
    """A server: its address and token, and a digest of all that a run's own JVM and its workers would be started with."""

    address: str
    token: SecretStr
    digest: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses it."""
        return {REMOTE_VARIABLE: self.address, TOKEN_VARIABLE: self.token.get_secret_value()}


def publish(settings: Settings, address: str, token: str) -> None:
    """Write the file of a server with these settings."""
    file = settings.state_dir / FILE
    text = json.dumps({"address": address, "token": token, "digest": _digest(settings)})
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(file)


def withdraw(settings: Settings) -> None:
    """Delete the file."""
    (settings.state_dir / FILE).unlink(missing_ok=True)


def shared_spark(settings: Settings) -> SharedSpark | None:
    """The server, if it is there and a JVM of the run's own would be no different.

    A run on an object store has its own: the server's workers would have the credentials of `game-events up`. So has a run that
    ships files (the workers may hold modules of an earlier session's files), one with a relative path in `PYTHONPATH` (the
    server has another current folder), and one whose code was edited since `game-events up` began.
    """
    if settings.spark_remote or not settings.warm_spark or is_remote(settings.lakehouse):
        return None
    if settings.spark_py_files or not all(map(os.path.isabs, _python_path())):
        return None
    load_extensions(settings.extensions)
    if edited_since_up(settings):
        return None
    file = settings.state_dir / FILE
    # Else another user could name a server, which would be sent plans with Kafka's password.
    if not only_mine(file, file.parent):
        return None
    with suppress(OSError, ValidationError):
        server = SharedSpark.model_validate_json(file.read_bytes())
        if server.digest == _digest(settings) and _accepts(server.address):
            return server
    return None


def use(server: SharedSpark) -> None:
    """Sessions of this process are on that server from now on, once settings are read again."""
    os.environ.update(server.environment)


def leave(server: SharedSpark) -> None:
    """Sessions of this process have a JVM of their own again, once settings are read again."""
    for name in (*server.environment, CONNECT_MODE):
        os.environ.pop(name, None)


def _python_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _digest(settings: Settings) -> str:
    conf = {key: value for key, value in jvm_config(settings).items() if key != DEFAULT_JAVA_OPTIONS}
    places = [sys.executable, str(PACKAGE), *_python_path()]
    return hashlib.sha256(json.dumps([places, conf], sort_keys=True).encode()).hexdigest()


def _accepts(address: str) -> bool:
    """Whether something listens there; False in a folder that is not this user's, who may have left the file behind."""
    path = Path(address.removeprefix(UNIX_SOCKET))
    if not only_mine(path.parent):
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(CONNECT_S)
        client.connect(str(path))
    return True
