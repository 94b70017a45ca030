"""Error of a malformed payload, with reason and field."""

import struct

from game_events.decoding.core.reasons import Reason


class DamageError(Exception):
    """A payload that cannot be read exactly.

    Attributes:
        reason: reason in quarantine.
        what: description of the error.
        path: field names from the value outwards.
    """

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(reason, what)
        self.reason = reason
        self.what = what
        self.path: list[str] = []

    def detail(self, message: str) -> str:
        """Detail in quarantine: message type, path and error."""
        return f"{'.'.join([message, *reversed(self.path)])}: {self.what}"


#: Errors of reading malformed bytes.
DAMAGE = (DamageError, IndexError, UnicodeDecodeError, struct.error, RecursionError)


def as_damage(error: BaseException) -> DamageError:
    """An error of `DAMAGE` as DamageError."""
    match error:
        case DamageError():
            return error
        case UnicodeDecodeError():
            return DamageError(Reason.BAD_UTF8, f"no UTF-8: {error.reason} at byte {error.start} of the text")
        case RecursionError():
            return DamageError(Reason.TOO_DEEP, "nested too deep to be read")
        case _:
            return DamageError(Reason.TRUNCATED, "the payload ends inside a value")
