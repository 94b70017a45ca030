"""Writes game_events/jvm/jars.sha256: fetches what ivy.xml names, and pins every file as it came.

Run it after a change of ivy.xml (`make lock-jars`) and read the difference: a file whose version did not change must keep its
SHA-256. Maven Central publishes `.sha256` or `.sha1` beside each file to compare with.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from game_events.jvm.jars import GROUPS, IVY_FILE, PINS, digests, fetch, unpack


def main() -> None:
    """Fetch every group into a folder of its own, with a cache of its own, and write what came."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in GROUPS.values():
            target = Path(folder) / group.name
            print(f"fetching {group.what}")
            fetch(group, target, Path(folder) / "ivy")
            found |= digests(target)
            unpack(target)
            found |= digests(target)
    of_ivy = hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()
    lines = [f"# what ivy.xml names, when its SHA-256 was {of_ivy}\n"]
    lines += [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    PINS.write_text("".join(lines))
    print(f"{len(found)} files pinned in {PINS}")


if __name__ == "__main__":
    main()
