"""Dagster's webserver behind a guard: ``python -m game_events.cli.ui.webserver``, with the options of `dagster-webserver`."""

import os
import pwd
from collections.abc import Iterable

from dagster_webserver.cli import cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from game_events.cli.ui.guard import UiGuard
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError


def guard() -> None:
    """Each application that Dagster makes in this process is behind the guard."""
    settings = load_settings()
    guarded = Middleware(UiGuard, address=settings.dagster_url, users=_ids(settings.ui_users))
    usual = DagsterWebserver.build_middleware

    def build_middleware(self: DagsterWebserver) -> list[Middleware]:  # type: ignore[type-arg]
        return [guarded, *usual(self)]

    DagsterWebserver.build_middleware = build_middleware  # type: ignore[method-assign]


def _ids(names: Iterable[str]) -> list[int]:
    try:
        return [pwd.getpwnam(name).pw_uid for name in names]
    except KeyError as error:
        raise ConfigurationError(f"GAME_EVENTS_UI_USERS: {error.args[0]}") from None


if __name__ == "__main__":
    # Else a header of any local client's says where it comes from (uvicorn believes those from 127.0.0.1).
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    guard()
    cli(auto_envvar_prefix="DAGSTER_WEBSERVER")
