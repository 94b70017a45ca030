"""A real Iceberg REST catalog: the reference implementation of Iceberg's own tests, in a JVM of its own.

Its HTTP server is the one in Spark's jars. Metadata is in a database in its memory and in files below the warehouse: a server
that was stopped has forgotten its tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from game_events.jvm.jars import folder_of, spark_home
from game_events.plugins.local.servers.server_process import HOST
from game_events_tests.support.servers.jars import ICEBERG_REST
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS


class IcebergRestServer:
    """Attributes: `url`, of the catalog; `warehouse`, where it puts tables without a location."""

    def __init__(self, warehouse: str) -> None:
        self.warehouse = warehouse
        jars = spark_home() / "jars"
        (py4j,) = jars.glob("py4j-*.jar")
        own = folder_of(ICEBERG_REST) / "iceberg_rest"
        port = launch_gateway(jarpath=str(py4j), classpath=f"{own}/*:{jars}/*", javaopts=JAVA_OPTIONS.split(), die_on_exit=True)
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._server = self._started(self._gateway.jvm)
        self.url = f"http://{HOST}:{self._server.getURI().getPort()}"

    def _started(self, java: Any) -> Any:
        """An HTTP server with the catalog's one servlet."""
        catalog = java.org.apache.iceberg.jdbc.JdbcCatalog()
        catalog.setConf(java.org.apache.hadoop.conf.Configuration())
        database = "jdbc:h2:mem:iceberg;DB_CLOSE_DELAY=-1"
        catalog.initialize("tests", {"uri": database, "warehouse": self.warehouse, "jdbc.schema-version": "V1"})
        jetty = java.org.sparkproject.jetty
        rest = java.org.apache.iceberg.rest
        context = jetty.servlet.ServletContextHandler()
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(java.java.net.InetSocketAddress(HOST, 0))
        server.setHandler(context)
        server.start()
        return server

    def stop(self) -> None:
        """End it: nobody answers at the address any more."""
        self._server.stop()
        process = self._gateway.java_process
        self._gateway.shutdown()
        if process is not None:
            process.stdin.close()
            process.wait()


@contextmanager
def iceberg_rest_server(warehouse: Path | str) -> Iterator[IcebergRestServer]:
    """A server that ends with the block."""
    server = IcebergRestServer(str(warehouse))
    try:
        yield server
    finally:
        server.stop()
