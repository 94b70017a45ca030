"""Failpoints: the named steps at which a crash must neither lose nor duplicate a row (docs/guarantees.md describes each).

Production code calls `reach` at each of them, which does nothing. Tests replace `handler` to end the process there.
"""


def handler(_name: str, _detail: object) -> None:
    """Do nothing."""


def reach(name: str, detail: object = None) -> None:
    """Call the handler."""
    handler(name, detail)
