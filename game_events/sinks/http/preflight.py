"""One call before the first chunk: checks the receiver's address, certificate and credentials."""

from __future__ import annotations

import asyncio

import aiohttp

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.sinks.http.delivery import LATER, LOCKED_OUT, client, failure_of
from game_events.sinks.http.target import RestTarget

#: Answers to a method that the receiver does not have: it is there.
NO_SUCH_METHOD = frozenset({405, 501})
OFF = "(GAME_EVENTS_REST_PREFLIGHT chooses another call, or none)"


def preflight(settings: Settings, target: RestTarget) -> None:
    """Make the call of the setting `rest_preflight`; no rows are sent.

    Raises:
        ConfigurationError: the certificate is not trusted, or the credentials or the address are refused.
        TransientError: the receiver does not answer, or is busy.
    """
    if not settings.rest_preflight:
        return
    method, _, path = settings.rest_preflight.partition(" ")
    url = target.at(path)
    try:
        status = asyncio.run(_call(target, method, url))
    except TimeoutError:
        raise TransientError(f"{target.shown} did not answer {method} within {target.timeout_s:g} s") from None
    except aiohttp.InvalidURL:
        raise ConfigurationError("GAME_EVENTS_REST_URL is no address that can be called") from None
    except aiohttp.ClientError as error:
        what = failure_of(error)
        if what == "certificate not trusted":
            raise ConfigurationError(
                f"{target.shown}: the receiver's certificate is not trusted: GAME_EVENTS_TLS_CA_FILE names its authority's "
                "PEM file"
            ) from None
        raise TransientError(f"{target.shown}: {what}; no row was sent") from None
    if status < 400 or status in NO_SUCH_METHOD:
        return
    said = f"{target.shown} answered {method} with HTTP {status}"
    if status in LOCKED_OUT:
        raise ConfigurationError(
            f"{said}: it does not let us in; look at GAME_EVENTS_REST_BEARER_TOKEN, _USER or _API_KEY {OFF}"
        )
    if status in LATER or status >= 500:
        raise TransientError(f"{said}; no row was sent")
    raise ConfigurationError(f"{said}: look at GAME_EVENTS_REST_URL {OFF}")


async def _call(target: RestTarget, method: str, url: str) -> int:
    async with client(target) as session, session.request(method, url, allow_redirects=False) as answer:
        return answer.status
