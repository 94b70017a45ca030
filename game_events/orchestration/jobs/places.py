"""Folders and prefixes outside of the lakehouse that a job may write to or read from.

Whoever may use Dagster's UI may start a job with any configuration, and has no other access to this machine or its object
store. So a job takes only places that the settings name. A command takes any: its user could do the same without it.
"""

from pathlib import Path
from posixpath import normpath

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.storage.options import is_remote

_of_commands: set[str] = set()


def allow_here(place: str) -> None:
    """Let runs in this process use a place: its command line names it."""
    _of_commands.add(place)


def check_place(settings: Settings, place: str) -> None:
    """Check that a run may use a place.

    Raises:
        ConfigurationError: it is neither below one of `job_places` nor this command's own.
    """
    if place in _of_commands or any(_is_below(place, allowed) for allowed in settings.job_places):
        return
    raise ConfigurationError(
        f"{place} is in no folder of GAME_EVENTS_JOB_PLACES, which names those that jobs started from the UI may use: add it "
        "there, or use the command line (`game-events archive --to`, `game-events rest run --files`)"
    )


def _is_below(place: str, allowed: str) -> bool:
    if is_remote(place) != is_remote(allowed):
        return False
    if is_remote(place):
        return f"{_address(place)}/".startswith(f"{_address(allowed)}/")
    return _folder(place).is_relative_to(_folder(allowed))


def _address(place: str) -> str:
    """With one scheme for S3, and no way up."""
    scheme, _, rest = place.replace("s3a://", "s3://", 1).partition("://")
    return f"{scheme}://{normpath(rest)}"


def _folder(place: str) -> Path:
    """Where links lead, as the job will follow them."""
    return Path(place.removeprefix("file://")).expanduser().resolve()
