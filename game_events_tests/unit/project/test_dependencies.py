"""What the package imports is declared, what is declared is locked, and who installs it may use it."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
#: Declared and not imported, with why.
NOT_IMPORTED = {
    "cryptography": "confluent-kafka's client of the registry brings it (by Authlib): this is the oldest version without holes",
    "delta-spark": "its jar is Delta Lake's own reader (game_events/pipeline/checks/audits.py)",
    "googleapis-common-protos": "its .proto files are read",
}
#: Imported and not declared: brought by a declared package, which decides the version.
BROUGHT = {
    "authlib": "confluent-kafka",
    "certifi": "confluent-kafka",
    "dagster-shared": "dagster",
    "dagster-spark": "dagster-pyspark",
    "grpcio": "grpcio-tools",
    "py4j": "pyspark",
    "python-dotenv": "pydantic-settings",
    "pyyaml": "pydantic-settings",
    "requests": "pyiceberg",
    "rich": "typer",
}
PLUGINS = ("local", "export", "files", "governance", "catalog", "alerts", "iceberg")
#: Plug-ins for one cloud: their extras are not in `all`.
OF_CLOUDS = ("msk",)
#: Namespaces that several packages share -> whose these modules are.
NAMESPACES = {"google.protobuf": "protobuf"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None = None) -> set[str]:
    listed = DECLARED["dependencies"] if extra is None else DECLARED["optional-dependencies"][extra]
    return {canonical(re.match(r"[A-Za-z0-9._-]+", entry)[0]) for entry in listed}


def imported(folder: str) -> dict[str, str]:
    """Module -> a file of the core (`core`) or a plug-in that imports it; modules of Python and of the package left out."""
    modules: dict[str, str] = {}
    for path in (PROJECT / "game_events").rglob("*.py"):
        parts = path.relative_to(PROJECT / "game_events").parts
        of = parts[1] if parts[0] == "plugins" and len(parts) > 2 else "core"
        if of != folder:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            modules |= {name: str(path.relative_to(PROJECT)) for name in names}
    own = {"game_events", *sys.stdlib_module_names}
    return {name: path for name, path in modules.items() if name.split(".")[0] not in own}


def used(folder: str) -> dict[str, str]:
    """Package -> a file that imports it."""
    return {package: path for module, path in imported(folder).items() if (package := package_of(module)) is not None}


@functools.cache
def installed() -> dict[str, set[str]]:
    """Top-level module -> packages that have it."""
    found = importlib.metadata.packages_distributions()
    return {module: {canonical(name) for name in packages} for module, packages in found.items()}


def package_of(module: str) -> str | None:
    for namespace, package in NAMESPACES.items():
        if module.startswith(namespace):
            return package
    packages = installed()[module.split(".", maxsplit=1)[0]]
    return next(iter(packages)) if len(packages) == 1 else None


def test_the_core_imports_what_is_mandatory_and_what_is_mandatory_is_imported_or_says_why_not():
    mandatory = declared()
    assert {package: path for package, path in used("core").items() if package not in mandatory | BROUGHT.keys()} == {}
    assert {name for name in used("core") if name in BROUGHT and BROUGHT[name] not in mandatory} == set()
    assert mandatory - used("core").keys() == NOT_IMPORTED.keys()
    assert len(mandatory) <= 22


@pytest.mark.parametrize("plugin", [*PLUGINS, *OF_CLOUDS])
def test_a_plugin_imports_what_is_mandatory_and_what_its_extra_has(plugin):
    there = declared() | declared(plugin)
    wanted = used(plugin)
    assert {
        package: path for package, path in wanted.items() if package not in there and BROUGHT.get(package) not in there
    } == {}
    assert declared(plugin) - wanted.keys() == set()


def test_what_is_brought_by_another_package_is_what_that_one_needs():
    for name, by in BROUGHT.items():
        needed = {canonical(re.match(r"[A-Za-z0-9._-]+", entry)[0]) for entry in importlib.metadata.requires(by) or ()}
        assert name in needed, (name, by)


def locked(name: str) -> dict[str, set[str]]:
    """Package -> its versions (one for each version of Python that needs its own)."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", (PROJECT / name).read_text(), re.MULTILINE):
        found.setdefault(canonical(package), set()).add(version)
    return found


def test_what_runs_is_locked_apart_from_what_it_is_tested_with_in_the_same_versions():
    runtime, development = locked("requirements.lock"), locked("requirements-dev.lock")
    assert declared() | {name for plugin in PLUGINS for name in declared(plugin)} <= runtime.keys()
    assert declared("dev") - {"game-events"} <= development.keys()
    assert {name: versions for name, versions in runtime.items() if development.get(name) != versions} == {}
    # Some of the tests' own are needed by others, too: cryptography, for one.
    assert runtime.keys() & {"pytest", "moto", "flask", "playwright", "mypy", "uv", "zensical"} == set()
    for name in ("requirements.lock", "requirements-dev.lock"):
        pins = re.findall(r"^[A-Za-z0-9][^\n]*==(?:[^\n]*\\\n)*[^\n]*", (PROJECT / name).read_text(), re.MULTILINE)
        assert pins
        assert [pin for pin in pins if "--hash=sha256:" not in pin] == []


def test_parts_come_by_the_pinned_lists_so_no_source_names_an_index_or_a_repository_of_packages():
    """Who has a mirror names it in the clients' own settings; a host in the source would be asked all the same."""
    hosts = re.compile(r"https?://[\w.-]*(maven|pypi|pythonhosted|npmjs|crates)\b", re.IGNORECASE)
    sources = [path for folder in ("game_events", "game_events_tests", "scripts") for path in (PROJECT / folder).rglob("*.py")]
    assert len(sources) > 100
    assert [str(path.relative_to(PROJECT)) for path in sources if hosts.search(path.read_text())] == []


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is made of, without what a working tree has besides."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(PROJECT / "game_events", tree / "game_events", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, tree)
    (tree / "game_events_tests").mkdir()
    (tree / "game_events_tests" / "__init__.py").touch()
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, "."], cwd=tree, check=True
    )
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_made_here_has_what_the_package_reads_and_its_licence_and_no_tests(tree, wheel):
    """Whoever installs it elsewhere gets it from such a wheel: no package index has this project."""
    with zipfile.ZipFile(wheel) as made:
        names = made.namelist()
        (metadata,) = [made.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    files = {path.relative_to(tree).as_posix() for path in (tree / "game_events").rglob("*") if path.is_file()}
    assert files - set(names) == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"game_events"}


def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """Its dependencies are this environment's: another folder of packages, in which this project is not."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    subprocess.run([*PIP, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def said(*command: str | Path) -> str:
        bare = {"PATH": os.defpath, "HOME": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=bare, check=True, capture_output=True, text=True, timeout=120).stdout

    assert said(python, "-c", "import game_events; print(game_events.__file__)").startswith(str(packages))
    assert " run " in said(environment / "bin" / "game-events", "--help")


def test_the_licence_is_there_and_named():
    assert DECLARED["license"] == "Apache-2.0"
    (text,) = [(PROJECT / name).read_text() for name in DECLARED["license-files"]]
    assert "Apache License" in text
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in text
