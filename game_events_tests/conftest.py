"""What all tests share: one stack and one Spark JVM for the whole run, a topic and a lakehouse for each test."""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, load_settings
from game_events.decoding.decoder import allow_deep_calls
from game_events.pipeline.context import Pipeline
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.fixtures.crashes import crash  # noqa: F401 - a fixture for every folder
from game_events_tests.support.fixtures.kafka import no_waiting  # noqa: F401 - a fixture for every folder
from game_events_tests.support.fixtures.registry import proxy  # noqa: F401 - a fixture for every folder
from game_events_tests.support.servers import shared_servers
from game_events_tests.support.servers.object_store import KEY, SECRET, ObjectStore
from game_events_tests.support.servers.spark_kinds import KIND, spark_of

#: Read before the tests' environment is made.
NO_SKIPS = bool(os.environ.get("GAME_EVENTS_TEST_NO_SKIPS"))
#: A number: files of tests are run in the random order that belongs to it.
ORDER = os.environ.get("GAME_EVENTS_TEST_ORDER")
#: In the order in which files of tests are run.
TIERS = ("scenario", "integration", "unit")
FOLDERS = {"unit": "unit", "integration": "integration", "scenarios": "scenario"}
#: Files that take longest begin first, as a file's tests are all run by one process: `--durations=0` tells how long each took.
LONGEST = (
    "scenarios/cluster/test_standalone.py",
    "scenarios/cluster/test_connect.py",
    "integration/lakehouse/test_altered_by_spark.py",
    "integration/guarantees/test_layouts.py",
    "scenarios/guarantees/test_crashes.py",
    "scenarios/docs/test_pages.py",
    "integration/silver/test_duplicates.py",
    "integration/silver/test_duplicates_of_types.py",
    "scenarios/fuzz/test_fuzz.py",
    "scenarios/orchestration/test_ui.py",
    "integration/guarantees/test_file_layout.py",
    "integration/silver/test_type_tables.py",
    "integration/silver/test_rejections.py",
    "integration/gold/test_gold_columns.py",
    "integration/pipeline/test_one_pass.py",
)
_RANKS = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
#: Fixtures that no test in `unit` may use.
SERVERS = frozenset({"servers", "stack", "spark", "store"})
#: What the tests' own settings leave in the environment.
KEPT = ("GAME_EVENTS_CACHE", shared_servers.VARIABLE, shared_servers.OWNER)
_numbers = itertools.count(1)
# Each run draws the same examples, so that none fails by chance; `new` draws others. No test depends on the machine's speed.
hypothesis.settings.register_profile(
    "game_events", deadline=None, derandomize=os.environ.get("GAME_EVENTS_TEST_EXAMPLES") != "new"
)
hypothesis.settings.load_profile("game_events")
# Hypothesis wants no test to change the limit of calls.
allow_deep_calls()


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Generator[None, object, object]:
    """The whole run, other processes of it included."""
    with shared_servers.servers_of_this_run():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's tier. What takes long comes first, so that no process begins it when others are done."""
    for item in items:
        item.add_marker(_tier(item))
    first: dict[Path, float] = {item.path: TIERS.index("unit") for item in items}
    for item in items:
        first[item.path] = min(first[item.path], *(TIERS.index(m.name) for m in item.iter_markers() if m.name in TIERS))
    if ORDER is not None:
        first = {path: random.Random(f"{ORDER} {path.parent.name} {path.name}").random() for path in first}  # noqa: S311 - an order
    items.sort(key=lambda item: (first[item.path], _RANKS.get(item.path, len(_RANKS))))


def _tier(item: pytest.Item) -> str:
    """The tier of a test's folder; in `integration` a test that takes long is marked as a scenario itself."""
    tier = FOLDERS[item.path.relative_to(Path(__file__).parent).parts[0]]
    servers = SERVERS.intersection(item.fixturenames if isinstance(item, pytest.Function) else ())
    own = item.get_closest_marker("scenario") is not None
    if tier == "unit" and (servers or own):
        raise pytest.UsageError(f"{item.nodeid}: a test in unit/ uses no server and is no scenario ({', '.join(servers)})")
    return "scenario" if own else tier


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything is there that a test may need, a test that is skipped has failed."""
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def servers() -> Path:
    """Folder of the servers that all processes of the run share."""
    return Path(os.environ[shared_servers.VARIABLE])


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests see neither the user's settings nor the user's stack, and write nothing into the checkout."""
    saved = dict(os.environ)
    for key in [k for k in os.environ if k.startswith("GAME_EVENTS_") and k not in KEPT]:
        del os.environ[key]
    folder = tmp_path_factory.mktemp("home")
    os.environ["GAME_EVENTS_STATE_DIR"] = str(folder / "state")
    # A fault that a test made is not waited for; tests of retries ask for them.
    os.environ["GAME_EVENTS_MODE"] = "development"
    os.environ["DAGSTER_HOME"] = str(folder / "dagster")
    (folder / "dagster").mkdir()
    # Spark's JVM looks for an object store's credentials in the environment that it was started with.
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture(autouse=True, scope="session")
def _migrations_are_read_once() -> Iterator[None]:
    """Dagster has Alembic read nearly a hundred files for each SQLite database, and each of its runs has one."""
    from_config = ScriptDirectory.from_config
    known: dict[str | None, ScriptDirectory] = {}

    def read_once(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = from_config(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", read_once)
        yield


@pytest.fixture(scope="session")
def stack(servers: Path) -> StackState:
    """A real broker and a real registry."""
    return shared_servers.SharedServers(servers).stack()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[SparkSession]:
    """One session for all tests of this process: in the shared JVM, unless `GAME_EVENTS_TEST_SPARK` names another kind."""
    with spark_of(KIND, tmp_path_factory.mktemp("spark"), servers) as session:
        yield session


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """An S3-compatible object store."""
    running = ObjectStore.start()
    yield running
    running.stop()


#: Layout of silver and gold in tests that do not choose one.
LAYOUT = os.environ.get("GAME_EVENTS_TEST_LAYOUT", "tables")
MakeSettings = Callable[..., Settings]
MakePipeline = Callable[[Settings], Pipeline]


@pytest.fixture
def make_settings(stack: StackState, tmp_path: Path) -> MakeSettings:
    """Settings with a topic of their own and a lakehouse below the test's folder."""
    topic = f"events_{next(_numbers)}_{uuid.uuid4().hex[:8]}"

    def make(**overrides: object) -> Settings:
        chosen: dict[str, object] = {
            "kafka_bootstrap_servers": stack.kafka_bootstrap_servers,
            "schema_registry_url": stack.schema_registry_url,
            "kafka_topic": topic,
            "lakehouse": str(tmp_path / "lakehouse"),
            "state_dir": tmp_path / "state",
            "spark_master": "local[2]",
            "silver_layout": LAYOUT,
        }
        return load_settings(**(chosen | overrides))

    return make


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Default settings of a test."""
    return make_settings()


@pytest.fixture
def make_pipeline(spark: SparkSession) -> MakePipeline:
    """A pipeline on the shared session: as a new process would have it, with nothing cached."""
    return lambda settings: Pipeline(settings, lambda: spark)


@pytest.fixture
def pipeline(settings: Settings, make_pipeline: MakePipeline) -> Pipeline:
    """A pipeline with the test's default settings."""
    return make_pipeline(settings)
