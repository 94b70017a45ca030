"""Asks osv.dev which of the locked Python packages and of the Java parts have known holes; fails if one has (`make audit`).

Python: requirements-dev.lock. Java: PySpark's jars and those of ivy.xml, with what is inside of them, as far as they were
fetched on this machine. What was judged harmless is in scripts/audit.toml, with its reason.

uv audits only projects with a lock of its own kind, so one is made of requirements-dev.lock, elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx2
import pyspark

from game_events.config.http_bounds import bounded
from game_events.jvm.jars import cache_dir

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
KNOWN = Path(__file__).with_suffix(".toml")
SERVICE = "https://api.osv.dev"
#: Seconds and bytes of an answer; packages of one question.
ANSWER_S, ANSWER_BYTES, AT_ONCE = 60.0, 2**26, 500
#: `name[extra]==version ; marker`, without the hashes.
_PIN = re.compile(r"^([A-Za-z0-9][^\s]*==[^\s;]+)( ; [^\\]+)?", re.MULTILINE)
#: artifact-version.jar; a number may belong to the artifact (`spark-sql-kafka-0-10_2.13`, `log4j-1.2-api`).
_JAR = re.compile(r"(?:modified-)?((?:.+?)(?:-0-10_2\.13|-1\.2-api)?)-(\d[\w.+-]*)\.jar")
_POM = re.compile(r"META-INF/maven/.+/pom\.properties")


@dataclass(frozen=True, order=True)
class Part:
    """A Java part: `group:artifact`, and its version."""

    name: str
    version: str


@dataclass(frozen=True, order=True)
class Hole:
    """A known hole of a part; `ids`: its id, then its aliases."""

    part: Part
    ids: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class Known:
    """What scripts/audit.toml has: (package, id) -> why it is harmless, and groups of artifacts."""

    harmless: Mapping[tuple[str, str], str]
    groups: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Known:
        """The file's content."""
        found = tomllib.loads(path.read_text())
        harmless = {(entry["package"], entry["id"]): entry["because"] for entry in found["harmless"]}
        return cls(harmless, found["groups"])

    def allows(self, hole: Hole) -> tuple[str, str] | None:
        """The entry that a hole is listed by."""
        return next((key for id_ in hole.ids if (key := (hole.part.name, id_)) in self.harmless), None)


def pins(lock: str) -> list[str]:
    """The requirements of a lock."""
    return [(name + (marker or "")).strip() for name, marker in _PIN.findall(lock)]


def parts_of(jar: Path, groups: Mapping[str, str]) -> set[Part]:
    """A jar's own coordinates and those of all that is packed into it; its own are missing only if nothing tells them."""
    found = set[Part]()
    with zipfile.ZipFile(jar) as archive:
        for name in filter(_POM.fullmatch, archive.namelist()):
            lines = archive.read(name).decode("utf-8", "replace").splitlines()
            pom = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
            if pom.keys() >= {"groupId", "artifactId", "version"}:
                found.add(Part(f"{pom['groupId']}:{pom['artifactId']}", pom["version"]))
    own = _by_name(jar.name, groups)
    if own is not None and own.name.partition(":")[2] not in {part.name.partition(":")[2] for part in found}:
        found.add(own)
    return found


def _by_name(name: str, groups: Mapping[str, str]) -> Part | None:
    parsed = _JAR.fullmatch(name)
    if parsed is None:
        return None
    artifact, version = parsed[1], parsed[2]
    group = next((group for pattern, group in groups.items() if fnmatchcase(artifact, pattern)), None)
    if group is None and "." in re.sub(r"_\d.*", "", artifact):  # the registry's jars: group.artifact-version.jar
        group, artifact = artifact.rsplit(".", 1)
    return None if group is None else Part(f"{group}:{artifact}", version)


def jar_files() -> list[Path]:
    """PySpark's jars, and those that were fetched for ivy.xml."""
    folders = [Path(pyspark.__file__).parent / "jars", cache_dir()]
    return sorted(jar for folder in folders for jar in folder.rglob("*.jar"))


def holes(parts: Sequence[Part], client: httpx2.Client) -> list[Hole]:
    """The known holes of some parts."""
    found, details = list[tuple[Part, str]](), dict[str, Any]()
    for begin in range(0, len(parts), AT_ONCE):
        asked = parts[begin : begin + AT_ONCE]
        pages: list[tuple[Part, str | None]] = [(part, None) for part in asked]
        while pages:
            answers = _post(client, pages)
            found += [
                (part, hole["id"]) for (part, _), got in zip(pages, answers, strict=True) for hole in got.get("vulns", [])
            ]
            # A part with very many of them is answered in pages.
            more = ((part, got.get("next_page_token")) for (part, _), got in zip(pages, answers, strict=True))
            pages = [(part, token) for part, token in more if token]
    for id_ in sorted({id_ for _, id_ in found}):
        details[id_] = client.get(f"/v1/vulns/{id_}").raise_for_status().json()
    return sorted(
        {Hole(part, (id_, *details[id_].get("aliases", [])), str(details[id_].get("summary", ""))) for part, id_ in found}
    )


def _post(client: httpx2.Client, pages: Iterable[tuple[Part, str | None]]) -> list[dict[str, Any]]:
    queries = [
        {"package": {"ecosystem": "Maven", "name": part.name}, "version": part.version}
        | ({"page_token": token} if token else {})
        for part, token in pages
    ]
    answer = client.post("/v1/querybatch", json={"queries": queries}).raise_for_status()
    return list(answer.json()["results"])


def audit_java(jars: Sequence[Path], known: Known, service: str) -> int:
    """Print the known holes of jars; 1 if one is not listed as harmless, or a jar's coordinates are unknown; else 0."""
    parts, nameless = set[Part](), list[str]()
    for jar in jars:
        inside = parts_of(jar, known.groups)
        parts |= inside
        if not inside:
            nameless.append(jar.name)
    with bounded(httpx2.Client(base_url=service, timeout=ANSWER_S), ANSWER_S, ANSWER_BYTES) as client:
        found = holes(sorted(parts), client)
    used = {hole: known.allows(hole) for hole in found}
    for hole, entry in used.items():
        why = f"harmless: {known.harmless[entry]}" if entry is not None else "NOT LISTED in scripts/audit.toml"
        print(f"{hole.part.name} {hole.part.version}: {', '.join(hole.ids)}: {hole.summary}\n    {why}")
    for package, id_ in sorted(known.harmless.keys() - set(used.values())):
        print(f"scripts/audit.toml: {id_} of {package} is not found any more: remove it")
    for name in sorted(set(nameless)):
        print(f"{name}: nothing tells its coordinates: add its group to scripts/audit.toml")
    new = [hole for hole, entry in used.items() if entry is None]
    print(f"{len(jars)} jars, {len(parts)} Java parts: {len(found)} known holes, {len(new)} of them not judged")
    return int(bool(new or nameless))


def audit_python(known: Known, service: str) -> int:
    """Lock the same versions for uv, and have it ask."""
    uv = str(Path(sys.executable).with_name("uv"))
    ignored = [word for _, id_ in known.harmless for word in ("--ignore", id_)]
    with tempfile.TemporaryDirectory() as folder:
        listed = ",\n".join(f"  {pin!r}" for pin in pins(LOCK.read_text()))
        project = f'[project]\nname = "locked"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [\n{listed}\n]\n'
        (Path(folder) / "pyproject.toml").write_text(project)
        subprocess.run([uv, "lock", "--quiet"], cwd=folder, check=True)
        asked = [uv, "audit", "--frozen", "--service-url", service, *ignored]
        return subprocess.run(asked, cwd=folder, check=False).returncode


def main(service: str = SERVICE) -> int:
    """Both audits; 1 if one of them fails."""
    known = Known.read(KNOWN)
    return max(audit_java(jar_files(), known, service), audit_python(known, service))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
