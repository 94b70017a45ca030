"""gRPC channel to a Spark Connect server, without name look-up or proxy on this machine."""

import grpc
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from game_events.config.network import LOOPBACK, UNIX_SOCKET, at_loopback

#: PySpark's builder requires an address also for a Unix socket.
_UNUSED = "sc://localhost:1"


class LocalChannel(DefaultChannelBuilder):
    """A channel within this machine, to exactly one address.

    PySpark's own tries each address of `localhost`, IPv6 first: another process listening there would get the token and plans.
    """

    def __init__(self, url: str, target: str, kind: grpc.LocalConnectionType) -> None:
        """`target`: gRPC's name of the address."""
        super().__init__(url, [("grpc.enable_http_proxy", 0)])
        self._target = target
        self._kind = kind

    def toChannel(self) -> grpc.Channel:  # noqa: N802 - PySpark's name
        """The channel; the token is sent with each call."""
        credentials = grpc.local_channel_credentials(self._kind)
        if self.token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(self.token))
        return self._secure_channel(self._target, credentials)


def channel_to(remote: str) -> DefaultChannelBuilder:
    """The channel for `spark_remote`; PySparkValueError for a bad address. PySpark sends tokens elsewhere only over TLS."""
    if remote.startswith(UNIX_SOCKET):
        return LocalChannel(_UNUSED, remote, grpc.LocalConnectionType.UDS)
    usual = DefaultChannelBuilder(remote)
    if usual.use_ssl or not at_loopback(remote):
        return usual
    host, _, port = usual.endpoint.rpartition(":")
    # An address stays what it is: all of 127/8 is this machine, and 127.0.0.1 another listener's than 127.0.0.2.
    target = f"ipv4:{LOOPBACK if host.lower() == 'localhost' else host}:{port}"
    return LocalChannel(remote, target, grpc.LocalConnectionType.LOCAL_TCP)
