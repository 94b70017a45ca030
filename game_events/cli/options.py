"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def words(given: list[str] | None) -> list[str]:
    """Words of an option that may be repeated, hold several separated by commas, or both."""
    return [word.strip() for text in given or [] for word in text.split(",") if word.strip()]


Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is one JSON object.")]
