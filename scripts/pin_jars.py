"""Writes game_events/jvm/jars.sha256, and that of the tests: fetches what each ivy.xml names, and pins every file as it came.

Run it after a change of an ivy.xml (`make lock-jars`) and read the difference: a file whose version did not change must keep
its SHA-256. Maven Central publishes `.sha256` or `.sha1` beside each file to compare with.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

from game_events.jvm.jars import S3, SPARK, STACK, Group, digests, fetch, unpack
from game_events_tests.support.servers.jars import TEST_GROUPS


def main() -> None:
    """Pin both."""
    pin((*SPARK.values(), STACK, *S3.values()))
    pin(TEST_GROUPS)


def pin(groups: Iterable[Group]) -> None:
    """Fetch groups with one Ivy file, each into a folder of its own, with a cache of its own, and write what came."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in groups:
            target = Path(folder) / "-".join((group.name, *group.confs))
            print(f"fetching {group.what}")
            fetch(group, target, Path(folder) / "ivy")
            found |= digests(target)
            unpack(target)
            found |= digests(target)
    of_ivy = hashlib.sha256(group.ivy_file.read_bytes()).hexdigest()
    lines = [f"# what ivy.xml names, when its SHA-256 was {of_ivy}\n"]
    lines += [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    group.pins.write_text("".join(lines))
    print(f"{len(found)} files pinned in {group.pins}")


if __name__ == "__main__":
    main()
