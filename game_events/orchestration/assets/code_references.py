"""The file and line that an asset's page opens: where its rows are made, or where a user's aggregate is declared."""

import inspect
import warnings
from collections.abc import Callable

import dagster as dg

#: Metadata key that Dagster's UI knows.
CODE_REFERENCES = "dagster/code_references"


def made_by(function: Callable[..., object]) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Metadata that refers to a function; Dagster's `with_source_code_references` would name the wrapper of all assets."""
    code = inspect.unwrap(function).__code__
    return declared_in(f"{code.co_filename}:{code.co_firstlineno}")


def declared_in(place: str) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Metadata that refers to `file:line`."""
    path, _, line = place.rpartition(":")
    with warnings.catch_warnings():
        # Both classes are beta in Dagster 1.13.
        warnings.filterwarnings("ignore", "Class `(LocalFile|)CodeReference", dg.BetaWarning)
        source = dg.LocalFileCodeReference(file_path=path, line_number=int(line))
        return {CODE_REFERENCES: dg.CodeReferencesMetadataValue(code_references=[source])}
