"""What is checked of the catalog: whether all tables are registered, and whether the grants are those of the settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import GameEventsError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.table_checks import TableCheck
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import CheckResult
from game_events.pipeline.runs.preflight import Hint
from game_events.plugins.catalog.catalogs.grants import Grants
from game_events.plugins.catalog.catalogs.places import tables_of
from game_events.plugins.catalog.catalogs.registration import REGISTERED, tables_registered
from game_events.plugins.catalog.catalogs.unity import UnityServer, in_path
from game_events.plugins.catalog.settings import CatalogSettings

HOLD = "grants_hold"


def grants_hold(pipeline: Pipeline) -> CheckResult:
    """Whether the catalog has exactly the grants of the settings on the tables."""
    grants = Grants.of(pipeline.settings)
    if grants is None:
        return CheckResult(HOLD, "bronze", True, "no grants are configured (GAME_EVENTS_GRANTS)")
    try:
        with closing(grants):
            plan = grants.plan(tables_of(pipeline.lakehouse))
    except GameEventsError as error:
        return CheckResult(
            HOLD, "bronze", False, f"the catalog could not be asked: {without_secrets(str(error), pipeline.settings)}"
        )
    counts = {"missing": len(plan.missing), "surplus": len(plan.surplus), "unregistered": len(plan.unregistered)}
    return CheckResult(HOLD, "bronze", plan.holds, plan.summary, counts | {"unknown": len(plan.failed)})


def doctor(settings: Settings) -> dict[str, Callable[[], str]]:
    """What `game-events doctor` shows of Unity Catalog, if it is used."""
    if CatalogSettings.of(settings).unity_url is None:
        return {}
    return {"catalog": lambda: _found(settings)}


def _found(settings: Settings) -> str:
    """A server that is down fails no run, so it is a hint only."""
    grants = Grants.of(settings)
    try:
        _require_catalog(settings)
        if grants is None:
            return f"{settings.catalog}: the server answers; no grants are configured"
        with closing(grants):
            plan = grants.plan(tables_of(Lakehouse.of(settings)))
    except TransientError as error:
        return Hint(f"{error}; runs warn until it does")
    text = f"{settings.catalog}: the server answers; grants: {plan.summary}"
    return text if plan.holds else Hint(f"{text} (`game-events grants plan`)")


def _require_catalog(settings: Settings) -> None:
    server = UnityServer.of(settings)
    if server is not None:
        with closing(server):
            server.ask("GET", f"catalogs/{in_path(str(settings.catalog).partition('.')[0])}")


CHECKS = (TableCheck(REGISTERED, "bronze", tables_registered), TableCheck(HOLD, "bronze", grants_hold))
