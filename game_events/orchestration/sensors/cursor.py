"""Base of the sensors' cursors."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ValidationError


class Cursor(BaseModel):
    """State of a sensor between two ticks, kept by Dagster as JSON."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Parse a cursor; an empty or invalid one gives a new one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
