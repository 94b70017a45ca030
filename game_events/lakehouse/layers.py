"""The layers, as commands, reports, settings and the column `layer` of quarantine and `progress` name them."""

from enum import StrEnum


class Layer(StrEnum):
    """A layer. An aggregate that a user defined is a layer `gold:{name}` (`GoldAggregate.layer`)."""

    BRONZE = "bronze"
    #: Written in bronze's pass: a layer in reports only.
    QUARANTINE = "quarantine"
    SILVER = "silver"
    GOLD = "gold"
    UNIFIED = "unified"
    #: The pipeline's own tables: a layer of owners and tags only.
    OWN = "own"


#: Layers that are made from bronze, in the order in which rows pass them.
DOWNSTREAM = (Layer.SILVER, Layer.GOLD, Layer.UNIFIED)
#: Layers that a run refreshes, in that order.
REFRESHED = (Layer.BRONZE, *DOWNSTREAM)
#: Layers of a report.
REPORTED = (Layer.BRONZE, Layer.QUARANTINE, *DOWNSTREAM)
#: What the layers of aggregates that users defined begin with.
OWN_GOLD = f"{Layer.GOLD}:"


def is_gold(layer: str) -> bool:
    """Whether a layer is gold's: of the built-in aggregate or of one that a user defined."""
    return layer == Layer.GOLD or layer.startswith(OWN_GOLD)
