"""`game-events grants`: who may read which table in Unity Catalog, by the setting `GRANTS`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.catalogs.grants import Grants, Plan
from game_events.plugins.catalog.catalogs.places import tables_of

app = typer.Typer(
    help="Who may read which table in Unity Catalog: what the settings want and the catalog lacks; made, or checked.",
    no_args_is_help=True,
    add_completion=False,
)

Revoke = Annotated[bool, typer.Option("--revoke", help="Take away, too, what is not in the settings.")]


@app.command("plan")
def plan(as_json: Json = False) -> None:
    """Show the changes that are missing, as statements, and what there is besides; nothing is changed."""
    output = Output(as_json=as_json)
    with _planned() as (_, found):
        _show(output, found)
    output.result(_as_json(found), success=not found.failed)


@app.command("apply")
def apply(revoke: Revoke = False, as_json: Json = False) -> None:
    """Give what is missing; exit code 1 if the catalog refuses some of it."""
    output = Output(as_json=as_json)
    with _planned() as (grants, found):
        failures = [*found.failures, *grants.make(found, revoke=revoke)]
    _show(output, found)
    for failure in failures:
        output.say(f"FAILED {failure}")
    asked = len(found.changes if revoke else found.missing)
    output.say(f"{asked:,} changes asked for, {len(failures):,} failures" if failures else f"{asked:,} changes made")
    if found.surplus and not revoke:
        output.say("what is surplus was left as it is: --revoke takes it away")
    output.result(_as_json(found) | {"failures": failures}, success=not failures)


@app.command("check")
def check(as_json: Json = False) -> None:
    """Exit code 1 if a grant is missing or surplus."""
    output = Output(as_json=as_json)
    with _planned() as (_, found):
        _show(output, found)
    output.result(_as_json(found), success=found.holds)


@contextmanager
def _planned() -> Iterator[tuple[Grants, Plan]]:
    settings = load_settings()
    grants = Grants.of(settings)
    if grants is None:
        raise ConfigurationError("no grants are configured: set GAME_EVENTS_GRANTS (docs/catalogs.md)")
    with closing(grants):
        yield grants, grants.plan(tables_of(Lakehouse.of(settings)))


def _show(output: Output, found: Plan) -> None:
    for title, changes in (("missing", found.missing), ("surplus", found.surplus)):
        if changes:
            output.step(title)
        for change in changes:
            output.say(f"  {change}")
    if found.unregistered:
        output.say(f"not registered yet, the next run does it: {', '.join(found.unregistered)}")
    for failure in found.failures:
        output.say(f"not known: {failure}")
    if found.holds:
        output.say("the catalog has the grants of the settings, and no others")


def _as_json(found: Plan) -> dict[str, object]:
    return {
        "missing": list(map(str, found.missing)),
        "surplus": list(map(str, found.surplus)),
        "unregistered": found.unregistered,
        "unknown": found.failed,
    }
