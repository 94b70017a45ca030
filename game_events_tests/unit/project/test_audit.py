"""`make audit` knows the Java parts, asks for their known holes, and fails for one that nobody has judged."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyspark
import pytest

PROJECT = Path(__file__).parents[3]
PATH = PROJECT / "scripts" / "audit.py"
SPEC = importlib.util.spec_from_file_location("audit", PATH)
audit = importlib.util.module_from_spec(SPEC)
sys.modules["audit"] = audit
SPEC.loader.exec_module(audit)
KNOWN = audit.Known.read(audit.KNOWN)
JARS = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))


@pytest.fixture
def service():
    """A service that answers as osv.dev does: (name, version) -> ids, at most one on a page; id -> aliases."""
    holes, aliases, asked = {}, {}, []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, body):
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):
            assert self.path == "/v1/querybatch"
            results = []
            for query in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]:
                assert query["package"]["ecosystem"] == "Maven"
                part = (query["package"]["name"], query["version"])
                asked.append(part)
                at, ids = int(query.get("page_token", 0)), holes.get(part, [])
                found = {"vulns": [{"id": id_, "modified": "2026-01-01T00:00:00Z"} for id_ in ids[at : at + 1]]} if ids else {}
                results.append(found | ({"next_page_token": str(at + 1)} if at + 1 < len(ids) else {}))
            self._answer({"results": results})

        def do_GET(self):
            id_ = self.path.removeprefix("/v1/vulns/")
            self._answer({"id": id_, "aliases": aliases.get(id_, []), "summary": f"about {id_}"})

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", holes, aliases, asked
    server.shutdown()
    server.server_close()


def test_every_jar_of_pyspark_has_coordinates_and_so_has_what_is_packed_into_it():
    parts = {jar.name: audit.parts_of(jar, KNOWN.groups) for jar in JARS}
    assert [name for name, found in parts.items() if not found] == []
    every = {(part.name, part.version) for found in parts.values() for part in found}
    versions = {name.rpartition("-")[0]: name.rpartition("-")[2].removesuffix(".jar") for name in parts}
    assert ("org.lz4:lz4-java", versions["lz4-java"]) in every
    assert ("org.apache.derby:derby", versions["derby"]) in every
    assert {"io.netty:netty-codec-http2", "org.apache.zookeeper:zookeeper", "org.apache.logging.log4j:log4j-core"} <= dict(
        every
    ).keys()
    # Packed into hadoop-client-runtime, under other package names.
    assert any(part.name.startswith("com.nimbusds:") for part in parts[next(n for n in parts if "client-runtime" in n)])


def test_only_holes_that_are_listed_with_their_reason_are_let_through(service, capsys, tmp_path):
    url, holes, aliases, asked = service
    jar, nobody = tmp_path / "lz4-java-1.8.0.jar", tmp_path / "mystery-1.0.jar"
    for path in (jar, nobody):
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("x.class", b"")
    known = audit.Known({("org.lz4:lz4-java", "CVE-1"): "another one comes before it", ("a:b", "CVE-9"): "gone"}, KNOWN.groups)
    assert audit.audit_java([jar], known, url) == 0
    said = capsys.readouterr().out
    assert "CVE-9 of a:b is not found any more: remove it" in said
    assert "1 jars, 1 Java parts: 0 known holes, 0 of them not judged" in said
    assert asked == [("org.lz4:lz4-java", "1.8.0")]

    holes[("org.lz4:lz4-java", "1.8.0")] = ["GHSA-1"]
    aliases["GHSA-1"] = ["CVE-1"]
    assert audit.audit_java([jar], known, url) == 0
    assert "GHSA-1, CVE-1: about GHSA-1\n    harmless: another one comes before it" in capsys.readouterr().out

    holes[("org.lz4:lz4-java", "1.8.0")] = ["GHSA-1", "GHSA-2"]
    assert audit.audit_java([jar], known, url) == 1
    said = capsys.readouterr().out
    assert "GHSA-2: about GHSA-2\n    NOT LISTED in scripts/audit.toml" in said
    assert "2 known holes, 1 of them not judged" in said

    holes.clear()
    assert audit.audit_java([jar, nobody], known, url) == 1
    assert "mystery-1.0.jar: nothing tells its coordinates: add its group to scripts/audit.toml" in capsys.readouterr().out


def test_what_is_judged_harmless_is_a_part_that_is_there_and_has_a_reason():
    every = {part.name for jar in JARS for part in audit.parts_of(jar, KNOWN.groups)}
    for (package, id_), because in KNOWN.harmless.items():
        assert package in every, id_
        assert len(because) > 20 or because.startswith("as "), id_


def test_the_oldest_versions_that_the_wheel_accepts_have_the_fixes_that_the_project_needs():
    """Whoever installs it without the locks gets no version with these holes."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("local", "export", "catalog")]
    listed = "\n".join([*project["dependencies"], *(entry for extra in extras for entry in extra)])
    floors = (
        "aiohttp>=3.14.3",
        "starlette>=1.0.1",
        "cryptography>=46.0.5",
        "requests>=2.32.4",
        "jinja2>=3.1.6",
        "protobuf>=6.33.5",
    )
    assert [floor for floor in floors if floor not in listed] == []
