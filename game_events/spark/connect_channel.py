"""The connection to a Spark Connect server: no name of this machine is looked up, and no proxy stands between."""

from __future__ import annotations

import grpc
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from game_events.config.local_addresses import LOOPBACK, UNIX_SOCKET, at_loopback

#: Where the server of `game-events up` is a Unix socket, PySpark's builder wants an address all the same.
_UNUSED = "sc://localhost:1"


class LocalChannel(DefaultChannelBuilder):
    """A connection within this machine, to exactly one address.

    PySpark's own tries each address of the name `localhost`, IPv6's first: who listens there is sent the token and every plan,
    though the server listens on 127.0.0.1.
    """

    def __init__(self, url: str, target: str, kind: grpc.LocalConnectionType) -> None:
        """`target`: in gRPC's words."""
        super().__init__(url, [("grpc.enable_http_proxy", 0)])
        self._target, self._kind = target, kind

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - PySpark's name
        """The connection; the token goes along with each call."""
        credentials = grpc.local_channel_credentials(self._kind)
        if self.token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(self.token))
        return self._secure_channel(self._target, credentials)


def channel_to(remote: str) -> DefaultChannelBuilder:
    """The connection that `spark_remote` names; what is on another machine needs TLS before it gets a token (PySpark's rule).

    Raises:
        PySparkValueError: it is no such address.
    """
    if remote.startswith(UNIX_SOCKET):
        return LocalChannel(_UNUSED, remote, grpc.LocalConnectionType.UDS)
    usual = DefaultChannelBuilder(remote)
    if usual.use_ssl or not at_loopback(remote):
        return usual
    return LocalChannel(remote, f"ipv4:{LOOPBACK}:{usual.endpoint.rpartition(':')[2]}", grpc.LocalConnectionType.LOCAL_TCP)
