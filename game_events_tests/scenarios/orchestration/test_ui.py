"""What a person sees: `game-events up` as it is started by hand, in a real browser; and that its daemon needs no click.

GAME_EVENTS_SCREENSHOTS=DIR writes the documentation's pictures.
"""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from game_events.config.settings import load_settings
from game_events_tests.support import reconciliation
from game_events_tests.support.servers.local_up import START_S, STOP_S, Site

# Read when the tests are collected: the tests themselves see none of the user's settings.
SCREENSHOTS = os.environ.get("GAME_EVENTS_SCREENSHOTS")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LOAD_MS = 300_000
CARRIED_S = 900
STEPS = """query($id: ID!) { runOrError(runId: $id) { ... on Run { stepStats { stepKey status } } } }"""
GROUPS = ",".join(f"global@global:{group}" for group in ("sources", "bronze", "silver", "gold"))
#: Some late events violate it; it only counts them.
RULE = {
    "name": "this_season",
    "sql": "event_timestamp >= TIMESTAMP '2024-01-01'",
    "description": "No event is from before the season",
}

pytestmark = [
    # A stack, a JVM, a daemon and a browser of its own.
    pytest.mark.browser,
    # Of what it waits for, each has a limit of its own.
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def site():
    # A name of its own, as the pictures show where the tables are.
    with tempfile.TemporaryDirectory(prefix="game-events-") as folder:
        site = Site(Path(folder))
        site.environment["GAME_EVENTS_RULES"] = json.dumps([RULE])
        site.environment["GAME_EVENTS_GOLD_INTERVAL_S"] = "1"
        process = site.start()
        try:
            site.first_sensors = site.sensors()
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
        errors = re.findall(r"Traceback .*\n(?:\s.*\n)*(\S.*)", site.log.read_text())
        # Dagster's daemon may say this of a sensor that it evaluates while it stops.
        assert [error for error in errors if "DagsterCodeLocationNotFoundError" not in error] == [], site.log.read_text()
        assert site.processes() == []


@pytest.fixture(scope="module")
def browser_window(site):  # noqa: ARG001 - it must be up
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is on the PATH")
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        window = browser.new_context(viewport={"width": 1500, "height": 860})
        window.set_default_timeout(LOAD_MS)
        expect.set_options(timeout=LOAD_MS)
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
    names = ["bronze_events", "quarantine_events", "silver_events", "gold_player_agg", "gold_unified_player_agg"]
    names += ["game_events-value", site.sent["topic"]]
    for name in names:
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=LOAD_MS)
    assert [name for name in names if not page.get_by_text(name, exact=True).first.is_visible()] == []
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


def test_a_refresh_has_a_bar_for_each_layer_and_each_asset_names_what_automates_it(page, site):
    page.set_viewport_size({"width": 2400, "height": 1600})
    page.open(f"/runs/{site.report['run_id']}")
    # All bars, of one width: in the chart by time, a step's name is shortened if the step was short.
    page.locator("button", has=page.get_by_label("gantt_flat")).click()
    for step in ("plan", "refresh_bronze", "refresh_silver", "refresh_gold", "refresh_unified"):
        page.get_by_text(step, exact=True).first.wait_for()
    page.locator("button", has=page.get_by_label("timer")).first.click()
    page.set_viewport_size({"width": 1500, "height": 640})
    picture(page, "run")
    page.open("/assets/silver_events?view=overview")
    page.get_by_text("Kept up to date by the job").first.wait_for()
    picture(page, "silver")


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
    # What a version changed: in a line, and as a table.
    page.open(f"/assets/schema_registry/{site.sent['topic']}-value?view=events")
    page.get_by_text(re.compile("version 2: .* added")).first.wait_for()
    page.get_by_text(re.compile("NULL in rows of older versions")).first.wait_for()
    picture(page, "schema_diff")


def test_the_status_page_says_in_one_look_whether_anything_needs_a_person(page):
    for _ in range(12):
        page.open("/assets/status?view=checks&checkDetail=all_is_well")
        page.get_by_text("all_is_well").first.wait_for()
        page.wait_for_timeout(3000)
        if page.get_by_text("checks that fail: rule_this_season").count():
            break
    else:
        pytest.fail("the sensor `status` has not logged the failed rule this_season")
    assert row(page, "checks_that_fail").inner_text() == "1"
    picture(page, "status")


def test_a_rule_that_rows_violate_is_a_failed_check_with_its_count(page, site):
    settings = load_settings(lakehouse=str(site.lakehouse))
    late = "SELECT count(*) FROM t WHERE event_timestamp < TIMESTAMP '2024-01-01'"
    violated = sum(reconciliation.rows(settings, f"silver_{game}_events", late)[0][0] for game in site.sent["games"])
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


def ended(site, run_id):
    """How a run ended."""
    site.wait_for(lambda: site.status(run_id) in ("CANCELED", "FAILURE", "SUCCESS"), START_S)
    return site.status(run_id)


@contextmanager
def unreadable(log):
    """A table of which the log is damaged."""
    good = log.rename(log.with_name("good_log"))
    log.mkdir()
    (log / "00000000000000000000.json").write_text('{"protocol":')
    try:
        yield
    finally:
        shutil.rmtree(log)
        good.rename(log)


def test_a_game_that_failed_is_red_wherever_a_state_is_shown_until_it_is_right_again(page, site):
    failing, other = sorted(site.sent["games"])[:2]
    with unreadable(site.lakehouse / f"silver_{failing}_events" / "_delta_log"):
        site.produce(games=(failing, other), records_per_game_and_version=20, seed=5)
        run_id = site.launch("refresh")
        assert ended(site, run_id) == "FAILURE"
        steps = {step["stepKey"]: step["status"] for step in site.ask(STEPS, id=run_id)["runOrError"]["stepStats"]}
        assert (steps["refresh_silver"], steps["report"]) == ("FAILURE", "FAILURE")
        assert steps["refresh_unified"] == "SUCCESS", "the layers after it are made for the other games"
        page.open("/assets/silver_events?view=partitions")
        page.get_by_text("Failed (1)").first.wait_for()
        picture(page, "failed_partition")
        page.get_by_text("Materialize…", exact=True).first.click()
        page.get_by_role("dialog").get_by_text(re.compile("Failed")).first.wait_for()
        picture(page, "failed_backfill")
        page.open(f"/runs/{run_id}")
        page.get_by_text("refresh_silver", exact=True).first.wait_for()
        picture(page, "failed_step")
        page.open(f"/asset-groups?expanded={quote(GROUPS)}")
        page.get_by_text("silver_events", exact=True).first.wait_for()
        picture(page, "failed_lineage")
    assert ended(site, site.launch("refresh")) == "SUCCESS"
    page.open("/assets/silver_events?view=partitions")
    page.get_by_text("Failed (0)").first.wait_for()


def test_a_check_that_a_run_does_not_make_keeps_its_last_result(page, site):
    assert ended(site, site.launch("checks")) == "SUCCESS"
    site.produce(games=sorted(site.sent["games"])[:1], records_per_game_and_version=20, seed=6)
    assert ended(site, site.launch("refresh")) == "SUCCESS"
    page.open("/assets/gold_player_agg?view=checks&checkDetail=gold_equals_recompute")
    page.get_by_text(re.compile(r"^as of \d{4}-\d\d-\d\d \d\d:\d\d UTC: ")).first.wait_for()
    picture(page, "kept_check")


def test_a_continuous_run_tells_what_it_does_while_it_runs_and_ends_when_it_is_terminated(page, site):
    run_id = site.launch("continuous")
    more = site.produce(games=("rummy", "chess"), records_per_game_and_version=50, seed=9)
    page.open(f"/runs/{run_id}")
    page.get_by_text("silver_events").first.wait_for()
    page.get_by_text("gold_player_agg").first.wait_for()
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
    assert reconciliation.rows(settings, "silver_chess_events", "SELECT count(*) FROM t") == [(more.decodable // 2,)]


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

    site.produce(games=("rummy",), records_per_game_and_version=20, seed=10)
    first = refreshed()
    site.produce(games=("rummy",), records_per_game_and_version=20, seed=11)
    os.kill(first, signal.SIGKILL)
    assert refreshed() != first
    assert "the shared Spark server ended; starting it again" in site.log.read_text()


def test_after_up_events_reach_gold_with_no_click_and_what_is_done_by_hand_is_carried_on(site):
    """Last of all, as it adds events: until here the sensor that looks for them was off."""
    assert {s["status"] for s in site.first_sensors.values()} == {"RUNNING"}
    assert set(site.first_sensors) == {
        "kafka_lag",
        "schema_versions",
        "new_games",
        "automation",
        "dead_runs",
        "alerts",
        "data_alarms",
        "continuous_mode",
        "status",
    }
    # One game that is there, one that nobody has seen.
    small = {"games": ("rummy", "ludo"), "records_per_game_and_version": 20}

    def events_in_gold():
        return int(reconciliation.rows(site.settings(), "gold_unified_player_agg", "SELECT sum(session_count) FROM t")[0][0])

    def new_runs(known):
        """But for those of the hourly and nightly schedules."""
        found = [run for run in site.runs() if run["runId"] not in known]
        return [run for run in found if "dagster/schedule_name" not in {tag["key"] for tag in run["tags"]}]

    def carried(known, events):
        site.wait_for(lambda: events_in_gold() == events, CARRIED_S)
        site.wait_for(lambda: all(run["status"] == "SUCCESS" for run in new_runs(known)), CARRIED_S)
        return new_runs(known)

    assert reconciliation.count(site.settings(), "silver_ludo_events") == 0
    # A run of `schema_versions` that is still under way would read the events, too; automation may owe a run to earlier ones.
    site.wait_for(site.is_quiet, CARRIED_S)
    known, events = {run["runId"] for run in site.runs()}, events_in_gold()
    events += site.produce(**small, seed=20).decodable
    site.start_sensor("kafka_lag")
    assert {run["pipelineName"] for run in carried(known, events)} == {"refresh"}

    site.stop_sensor("kafka_lag")
    known = {run["runId"] for run in site.runs()}
    events += site.produce(**small, seed=21).decodable
    site.launch("__ASSET_JOB", "bronze_events", "quarantine_events")
    new = carried(known, events)
    tags = [{tag["key"] for tag in run["tags"]} for run in new]
    carriers = [keys for keys in tags if "game_events/carries" in keys]
    assert len(new) - len(carriers) == 1, "one by hand"
    assert len(carriers) in {1, 2}, "one that carries on; one more if automation looked while the one by hand was under way"
    assert all("game_events/process" in keys for keys in tags)
