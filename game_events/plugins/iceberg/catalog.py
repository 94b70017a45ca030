"""The Iceberg catalog of a lakehouse: one of pyiceberg's own configuration, or a SQLite file below the lakehouse."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, cast

from pydantic_settings import BaseSettings
from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.utils.config import Config

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.storage import endpoint_of, is_remote, is_s3, region_of
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.iceberg.current import FOLDER
from game_events.plugins.iceberg.settings import IcebergSettings

#: Name of the catalog in the SQLite file.
OWN = "game_events"

#: What ends the path of an address for Iceberg's readers, though a folder may have it in its name.
_CUT = re.compile(r"[#?]")


def own_file_of(settings: Settings, lakehouse: Lakehouse) -> Path | None:
    """The SQLite file of the default catalog; None: another one is named."""
    return Path(lakehouse.root, FOLDER, "catalog.db") if IcebergSettings.of(settings).iceberg_catalog is None else None


def is_there(settings: Settings, lakehouse: Lakehouse) -> bool:
    """Whether the catalog can be asked without making it."""
    file = own_file_of(settings, lakehouse)
    return file is None or file.exists()


def open_catalog(settings: Settings, lakehouse: Lakehouse) -> Catalog:
    """The catalog.

    Raises:
        ConfigurationError: the catalog is not configured, or the lakehouse is where the default one cannot be.
    """
    refuse_root(settings, lakehouse.root)
    file = own_file_of(settings, lakehouse)
    if file is None:
        return _configured(settings, str(IcebergSettings.of(settings).iceberg_catalog))
    file.parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(OWN, type="sql", uri=f"sqlite:///{file}?timeout=30", warehouse=f"file://{lakehouse.root}")


def refuse_root(settings: BaseSettings, root: str) -> None:
    """Raise ConfigurationError for a lakehouse that Iceberg, or the default catalog, cannot have."""
    cut = _CUT.search(root)
    if cut is not None:
        raise ConfigurationError(
            f"GAME_EVENTS_ICEBERG: {root} has {cut[0]!r} in it, at which Iceberg's readers cut addresses off"
        )
    if IcebergSettings.of(settings).iceberg_catalog is None and is_remote(root):
        raise ConfigurationError(
            f"GAME_EVENTS_ICEBERG: {root} is in an object store, where the default catalog, a SQLite file, cannot be: name a "
            "catalog of pyiceberg's configuration (GAME_EVENTS_ICEBERG_CATALOG, docs/iceberg.md)"
        )


def _configured(settings: Settings, name: str) -> Catalog:
    """A catalog of pyiceberg's configuration as it is now, in which the lakehouse's store need not be named."""
    try:
        configured = Config().get_catalog_config(name)
        if configured is None:
            raise ValueError("it is not configured")
        # A REST server deletes old metadata itself: pyiceberg, which then cannot, would warn at each commit.
        logging.getLogger("pyiceberg.catalog").setLevel(logging.ERROR)
        properties = store_options(settings) | cast("dict[str, Any]", configured)
        return _rest(settings, name, properties) if _is_rest(name, properties) else load_catalog(name, **properties)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"GAME_EVENTS_ICEBERG_CATALOG: pyiceberg cannot use the catalog {name!r}: {error}. It is configured by "
            f".pyiceberg.yaml, or by variables PYICEBERG_CATALOG__{name.upper()}__TYPE, ...__URI (docs/iceberg.md)"
        ) from error


def _is_rest(name: str, properties: dict[str, Any]) -> bool:
    if "type" in properties:
        return str(properties["type"]).lower() == CatalogType.REST.value and "uri" in properties
    return "py-catalog-impl" not in properties and infer_catalog_type(name, properties) is CatalogType.REST


def _rest(settings: Settings, name: str, properties: dict[str, Any]) -> Catalog:
    from game_events.plugins.iceberg.rest import TIMEOUT, BoundedRestCatalog  # noqa: PLC0415 - half a second, if it is used

    properties |= {TIMEOUT: str(IcebergSettings.of(settings).iceberg_timeout_s)}
    if settings.tls_ca_file is not None:
        properties["ssl"] = {"cabundle": str(settings.tls_ca_file)} | properties.get("ssl", {})
    return BoundedRestCatalog(name, **properties)


def store_options(settings: Settings) -> dict[str, str]:
    """Pyiceberg's properties for the object store of the lakehouse; credentials are read where AWS's own tools read them."""
    if not is_s3(settings.lakehouse):
        return {}
    options = {}
    endpoint = endpoint_of(settings)
    if endpoint is not None:
        options["s3.endpoint"] = endpoint
        options["s3.force-virtual-addressing"] = str(not settings.storage_path_style).lower()
    region = region_of(settings)
    if region is not None:
        options["s3.region"] = region
    return options
