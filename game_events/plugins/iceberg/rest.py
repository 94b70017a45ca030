"""Iceberg's REST catalog, of which no request waits for ever: pyiceberg gives its requests no time-out."""

from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

#: Property of the catalog: seconds that a server may be silent.
TIMEOUT = "game-events.timeout-s"


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose connections end."""

    def _create_session(self) -> Session:
        """As of the base class, for all of its requests, those for tokens included."""
        session = super()._create_session()
        # A session's own authorities would give way to those of the environment.
        trust = None if session.verify is True else session.verify
        bounded = partial(session.request, timeout=float(self.properties[TIMEOUT]), verify=trust)
        session.request = bounded  # type: ignore[method-assign]
        return session

    def close(self) -> None:
        """End its connections."""
        self._session.close()
