"""`game-events mock-api`: an HTTP receiver with configurable latency and error rates, to try the export with."""

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.cli.local.mock_receiver import HOST, MockApi, MockFaults
from game_events.errors import ConfigurationError


def mock_api(  # noqa: PLR0913, PLR0917 - the command's options
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 8088,
    latency_ms: Annotated[float, typer.Option(min=0, help="How long an answer takes.")] = 0.0,
    latency_per_row_ms: Annotated[float, typer.Option(min=0, help="And how much longer for each row.")] = 0.0,
    error_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 503.")] = 0.0,
    throttle_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 429 with Retry-After.")] = 0.0,
    hang_share: Annotated[float, typer.Option(min=0, max=1, help="Calls that are never answered.")] = 0.0,
    close_share: Annotated[float, typer.Option(min=0, max=1, help="Connections closed without an answer.")] = 0.0,
    accept_then_timeout_share: Annotated[
        float, typer.Option(min=0, max=1, help="Calls with rows that are taken, and without an answer.")
    ] = 0.0,
    refuse_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 422.")] = 0.0,
    rate_limit: Annotated[float, typer.Option(min=0, help="Calls a second; more are answered 429. 0: any number.")] = 0.0,
    retry_after_s: Annotated[int, typer.Option(min=0, help="Seconds of the Retry-After header of a 429.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the choice of faults.")] = 1,
    log: Annotated[Path | None, typer.Option(help="Append a JSON line for each call: time, key, rows, status.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With the rows in it.")] = False,
    as_json: Json = False,
) -> None:
    """Take rows on loopback until Ctrl-C; nothing is kept but the log."""
    options = locals()
    output = Output(as_json=as_json)
    faults = MockFaults(**{f.name: options[f.name] for f in fields(MockFaults)})
    with ExitStack() as closing, suppress(KeyboardInterrupt):
        api = MockApi(faults, closing.enter_context(log.open("a")) if log is not None else None, bodies=bodies)

        def ready(found: int) -> None:
            output.say(f"taking rows on http://{HOST}:{found}/ until Ctrl-C")
            output.result({"url": f"http://{HOST}:{found}/", "port": found})

        try:
            asyncio.run(api.serve(port, ready))
        except OSError as error:
            raise ConfigurationError(f"port {port} cannot be taken ({error.strerror}): choose another with --port") from None
