"""What a person sees: `game-events up` as it is started by hand, in a real browser.

GAME_EVENTS_SCREENSHOTS=DIR writes the documentation's pictures; GAME_EVENTS_REQUIRE_BROWSER=1 makes a missing Chromium a
failure instead of a skip.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import httpx2
import psutil
import pytest

from game_events.settings import load_settings
from game_events.stack.ports import free_ports
from game_events_tests import books
from game_events_tests.assets.conftest import PROJECT

# Read when the tests are collected: the tests themselves see none of the user's settings.
SCREENSHOTS = os.environ.get("GAME_EVENTS_SCREENSHOTS")
REQUIRED = os.environ.get("GAME_EVENTS_REQUIRE_BROWSER") == "1"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
START_S, STOP_S, LOAD_MS = 180, 60, 60_000
GROUPS = ",".join(f"global@global:{group}" for group in ("sources", "bronze", "silver", "gold"))
#: Some late events violate it; it only counts them.
RULE = {
    "name": "this_season",
    "sql": "event_timestamp >= TIMESTAMP '2024-01-01'",
    "description": "No event is from before the season",
}
LAUNCH = """mutation($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
 ... on LaunchRunSuccess { run { runId } } } }"""
STATUS = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
SENSORS = """query { sensorsOrError(
 repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "game_events"})
 { ... on Sensors { results { name sensorState { id status } } } } }"""

pytestmark = [
    # A stack, a JVM, a daemon and a browser of its own.
    pytest.mark.scenario,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no chromium, chromium-browser or google-chrome on the PATH"),
]


class Site:
    """A folder with the project's two Dagster files, where the command line is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lakehouse = folder / "lakehouse"
        for name in ("workspace.yaml", "dagster.yaml"):
            shutil.copyfile(PROJECT / name, folder / name)
        self.environment = {k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"} | {
            "GAME_EVENTS_STATE_DIR": str(folder / "state"),
            "GAME_EVENTS_LAKEHOUSE": str(self.lakehouse),
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
        }
        (self.port,) = free_ports(1)
        self.log = folder / "up.log"

    def start(self) -> subprocess.Popen[bytes]:
        """`game-events up`; returns when it has printed the address."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [self.script, "up", "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while f"Dagster UI: http://127.0.0.1:{self.port}" not in self.log.read_text():
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)
        return process

    def run(self, *arguments: str) -> dict:
        """A command with `--json`: its result."""
        found = subprocess.run(
            [self.script, *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout.splitlines()[-1])

    def ask(self, query: str, **variables: object) -> dict:
        """A question to the UI's server."""
        body = {"query": query, "variables": variables}
        answer = httpx2.post(f"http://127.0.0.1:{self.port}/graphql", json=body, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def sensors(self) -> dict[str, dict]:
        """Each sensor's state."""
        return {s["name"]: s["sensorState"] for s in self.ask(SENSORS)["sensorsOrError"]["results"]}

    def stop_sensor(self, name: str) -> None:
        """Switch a sensor off, as its switch does."""
        self.ask("mutation($id: String!) { stopSensor(id: $id) { __typename } }", id=self.sensors()[name]["id"])

    def launch(self, job: str) -> str:
        """Start a job as its launchpad does; its run's id."""
        selector = {"repositoryName": "__repository__", "repositoryLocationName": "game_events", "jobName": job}
        answer = self.ask(LAUNCH, p={"selector": selector, "mode": "default"})
        return answer["launchPipelineExecution"]["run"]["runId"]

    def status(self, run_id: str) -> str:
        """How a run stands."""
        return self.ask(STATUS, id=run_id)["runOrError"]["status"]

    def processes(self) -> list[str]:
        """Command lines of everything that still runs for this folder."""
        mine = str(self.folder / "state")
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and mine in process.environ().get("GAME_EVENTS_STATE_DIR", ""):
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    @property
    def script(self) -> str:
        """The installed command."""
        return str(Path(sys.executable).with_name("game-events"))


@pytest.fixture(scope="module")
def site():
    assert CHROMIUM, "GAME_EVENTS_REQUIRE_BROWSER=1, and no chromium, chromium-browser or google-chrome is on the PATH"
    # A name of its own, as the pictures show where the tables are.
    with tempfile.TemporaryDirectory(prefix="game-events-") as folder:
        site = Site(Path(folder))
        site.environment["GAME_EVENTS_RULES"] = json.dumps([RULE])
        site.environment["GAME_EVENTS_GOLD_INTERVAL_S"] = "1"
        process = site.start()
        try:
            # What the pictures show is to be the command line's run.
            site.stop_sensor("kafka_lag")
            site.sent = site.run("produce", "--poison-share", "0.02", "--late-share", "0.05")
            site.report = site.run("run")
            yield site
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_S)
        assert code == 0, site.log.read_text()
        assert site.log.read_text().rstrip().endswith("stopped")
        assert "Traceback" not in site.log.read_text()
        assert site.processes() == []


@pytest.fixture(scope="module")
def browser_window(site):  # noqa: ARG001 - it must be up
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        window = browser.new_context(viewport={"width": 1500, "height": 860})
        window.set_default_timeout(LOAD_MS)
        yield window
        browser.close()


@pytest.fixture
def page(browser_window, site):
    """A page that opens paths of the UI."""
    page = browser_window.new_page()
    # Dagster's invitation to its community, over everything, at the first visit.
    page.add_locator_handler(
        page.get_by_text("Join the Dagster community"), lambda: page.get_by_role("button", name="Skip").click()
    )
    page.open = lambda path: page.goto(f"http://127.0.0.1:{site.port}{path}")
    yield page
    page.close()


def picture(page, name):
    """One picture for the documentation, if somebody wants them."""
    if SCREENSHOTS:
        page.wait_for_timeout(1500)
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


def row(page, key):
    """The value beside a key in a table of metadata."""
    return page.locator("tr", has=page.get_by_text(key, exact=True)).locator("td").nth(1)


def test_the_lineage_shows_topic_subject_and_every_layer(page, site):
    from playwright.sync_api import expect  # noqa: PLC0415 - only where there is a browser

    page.set_viewport_size({"width": 2360, "height": 760})
    page.open(f"/asset-groups?expanded={quote(GROUPS)}")
    page.get_by_text("Hide navigation").click()
    for name in (
        "bronze_events",
        "quarantine_events",
        "silver_events",
        "gold_player_agg",
        "gold_unified_player_agg",
        "game_events-value",
    ):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=LOAD_MS)
    expect(page.get_by_text(site.sent["topic"], exact=True).first).to_be_visible(timeout=LOAD_MS)
    picture(page, "lineage")


def test_a_partition_of_silver_says_how_many_rows_where_and_which_version(page, site):
    page.open("/assets/silver_events?view=partitions&partition=rummy")
    page.get_by_text("dagster/row_count").wait_for()
    assert row(page, "dagster/row_count").inner_text() == str(site.report["games"]["rummy"]["silver"])
    assert row(page, "dagster/uri").inner_text() == str(site.lakehouse / "silver_rummy_events")
    assert row(page, "dagster/table_name").inner_text() == "silver_rummy_events"
    assert row(page, "delta_version").inner_text() == "0"
    for game in site.sent["games"]:
        page.get_by_text(game, exact=True).first.wait_for()
    page.get_by_text("Missing (0)").first.wait_for()
    picture(page, "partition")


def test_the_check_has_passed_and_shows_the_books(page, site):
    page.open("/assets/silver_events?view=checks")
    page.get_by_text("Evaluation result").wait_for()
    page.get_by_text("Passed").first.wait_for()
    rows = f"{site.sent['decodable']:,}"
    page.get_by_text(f"bronze {rows} = silver {rows} + unrouted 0 + pending 0").first.wait_for()
    assert row(page, "quarantine_rows").inner_text() == str(sum(site.sent["poison"].values()))
    picture(page, "checks")


def test_the_run_of_the_command_line_is_listed_as_a_success(page, site):
    page.set_viewport_size({"width": 1500, "height": 420})
    page.open("/runs")
    run = page.locator("[data-index], tr", has=page.get_by_text(site.report["run_id"][:8])).first
    run.wait_for()
    assert "refresh" in run.inner_text()
    assert "Success" in run.inner_text()
    picture(page, "runs")


def test_the_sensor_is_listed_and_switched_on_and_has_told_of_the_versions(page, site):
    from playwright.sync_api import TimeoutError as NotYet  # noqa: PLC0415 - only where there is a browser
    from playwright.sync_api import expect  # noqa: PLC0415

    page.open("/automation")
    mine = page.locator("[data-index]", has=page.get_by_text("schema_versions", exact=True)).first
    mine.wait_for()
    # Select this one, and the switch.
    expect(mine.get_by_role("checkbox")).to_have_count(2)
    expect(mine.get_by_role("checkbox").last).to_be_checked()
    # The sensor looks every 30 s, and this page shows what there was when it was opened.
    for _ in range(12):
        page.open(f"/assets/schema_registry/{site.sent['topic']}-value")
        try:
            page.get_by_text("schema_ids", exact=True).wait_for(timeout=10_000)
            break
        except NotYet:
            continue
    assert re.sub(r"\s", "", row(page, "schema_ids").last.inner_text()) != ""


def test_a_rule_that_rows_violate_is_a_failed_check_with_its_count(page, site):
    settings = load_settings(lakehouse=str(site.lakehouse))
    late = "SELECT count(*) FROM t WHERE event_timestamp < TIMESTAMP '2024-01-01'"
    violated = sum(books.rows(settings, f"silver_{game}_events", late)[0][0] for game in site.sent["games"])
    assert 0 < violated < site.sent["decodable"]
    page.open("/assets/silver_events?view=checks&checkDetail=rule_this_season")
    page.get_by_text(f"{violated:,} of {site.sent['decodable']:,} rows violate").first.wait_for()
    assert row(page, "violated").inner_text() == f"{violated:,}"
    picture(page, "failed_check")


def test_a_sensor_shows_its_ticks_and_what_it_decided(page):
    for _ in range(12):
        page.open("/locations/__repository__@game_events/sensors/schema_versions")
        page.get_by_text("schema_versions").first.wait_for()
        page.wait_for_timeout(3000)
        if page.get_by_text("Skipped").count() or page.get_by_text("Requested").count():
            break
    else:
        pytest.fail("no tick is shown")
    picture(page, "sensor")


def test_a_continuous_run_tells_what_it_does_while_it_runs_and_ends_when_it_is_terminated(page, site):
    run_id = site.launch("continuous")
    more = site.run("produce", "--games", "rummy,chess", "--records", "50", "--seed", "9")
    page.open(f"/runs/{run_id}")
    page.get_by_text("silver_events").first.wait_for(timeout=180_000)
    page.get_by_text("gold_player_agg").first.wait_for(timeout=60_000)
    assert site.status(run_id) == "STARTED"
    picture(page, "continuous")
    page.get_by_role("button", name="Terminate").first.click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Terminate")).click()
    deadline = time.monotonic() + STOP_S
    while site.status(run_id) not in ("CANCELED", "FAILURE", "SUCCESS"):
        assert time.monotonic() < deadline, site.log.read_text()[-3000:]
        time.sleep(0.5)
    assert site.status(run_id) == "CANCELED"
    settings = load_settings(lakehouse=str(site.lakehouse))
    assert books.rows(settings, "silver_chess_events", "SELECT count(*) FROM t") == [(more["decodable"] // 2,)]


def test_runs_share_one_spark_server_which_is_started_again_when_it_dies(site):
    recorded = site.folder / "state" / "spark" / "connect.json"

    def refreshed():
        """The server's process after a run, in which nothing but the server was a JVM with Spark."""
        run_id = site.launch("refresh")
        deadline = time.monotonic() + START_S
        while site.status(run_id) not in ("CANCELED", "FAILURE", "SUCCESS"):
            assert not [line for line in site.processes() if "pyspark-shell" in line]
            assert time.monotonic() < deadline, site.log.read_text()[-3000:]
            time.sleep(0.5)
        assert site.status(run_id) == "SUCCESS"
        return json.loads(recorded.read_text())["pid"]

    site.run("produce", "--games", "rummy", "--records", "20", "--seed", "10")
    first = refreshed()
    site.run("produce", "--games", "rummy", "--records", "20", "--seed", "11")
    os.kill(first, signal.SIGKILL)
    assert refreshed() != first
    assert "the shared Spark server ended; starting it again" in site.log.read_text()
