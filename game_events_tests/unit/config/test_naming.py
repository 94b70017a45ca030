"""Names of tables and assets by prefix and nouns: what is allowed, and that a table is found again by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from game_events.config.names import FIXED, OWN, PROGRESS, Names
from game_events.lakehouse.tables import (
    BRONZE,
    ERASED_PEOPLE,
    EVENT_LOG,
    EXPORT_TABLES,
    OWN_TABLES,
    QUARANTINE,
    SCHEMAS,
    SILVER,
    SOURCE_FILES,
    UNIFIED,
    Lakehouse,
    game_of_silver,
    gold_name,
    silver_name,
)

IOT = Names(events="readings", aggregate="devices", entities="sites")
SOME = [Names(), IOT, Names(prefix="dev_"), IOT.model_copy(update={"prefix": "dev_"})]
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name != "unified")


def test_the_default_names_are_these():
    assert {key: Names().name_of(key) for key in OWN_TABLES} == {key: key for key in OWN_TABLES}
    assert (Names().name_of(silver_name("uno")), Names().name_of(gold_name("uno"))) == (
        "silver_uno_events",
        "gold_uno_player_agg",
    )
    assert Names().name_of(gold_name("uno", "devices")) == "gold_uno_devices"
    assert {"silver_events", "gold_player_agg", "games"} == {Names().silver_asset, Names().gold_asset, Names().entities}


def test_every_table_of_the_pipelines_own_has_a_name():
    own = {SCHEMAS, PROGRESS, EVENT_LOG, ERASED_PEOPLE, SOURCE_FILES, *EXPORT_TABLES}
    assert {BRONZE, QUARANTINE, SILVER, UNIFIED, *own} == OWN_TABLES
    assert {*FIXED, *OWN} == OWN_TABLES


@pytest.mark.parametrize("names", SOME)
@given(game=NAMES, aggregate=st.sampled_from(["player_agg", "by_type", "by_hour"]))
def test_every_table_is_found_again_by_its_name(names, game, aggregate):
    keys = [*OWN_TABLES, silver_name(game), gold_name(game, aggregate)]
    there = [names.name_of(key) for key in keys]
    assert len(set(there)) == len(keys)
    assert sorted(names.keys_of(there)) == sorted(keys)


@pytest.mark.parametrize("names", SOME)
@given(game=NAMES)
def test_the_path_of_a_file_tells_whose_it_is(names, game):
    import re  # noqa: PLC0415

    for key, pattern in (
        (silver_name(game), names.silver_path()),
        (gold_name(game), names.gold_path()),
    ):
        for root in ("file:/lake", "file:/a%20lake/x=1/gold_b_player_agg", "s3a://bucket", "abfss://a@b.net/c"):
            assert re.search(pattern, f"{root}/{names.name_of(key)}/part-1.parquet")[1] == game


def test_pipelines_with_other_prefixes_do_not_see_each_others_tables(tmp_path):
    prod, dev = (Lakehouse(str(tmp_path), called=Names(prefix=prefix)) for prefix in ("", "dev_"))
    keys = [*OWN_TABLES, silver_name("uno"), gold_name("uno"), gold_name("uno", "devices")]
    for lakehouse in (prod, dev):
        for key in keys:
            (lakehouse.table(key).local_path / "_delta_log").mkdir(parents=True)
    (tmp_path / "somebody_elses" / "_delta_log").mkdir(parents=True)
    assert sorted(prod.names()) == sorted([*keys, "somebody_elses"])
    assert sorted(dev.names()) == sorted(keys)
    assert dev.silver("uno").name == "dev_silver_uno_events"
    assert [game_of_silver(key) for key in dev.names() if game_of_silver(key)] == ["uno"]


def test_a_table_that_is_called_as_another_domains_is_not_taken_for_one_of_ours(tmp_path):
    for name in ("silver_uno_events", "bronze_events", "bronze_readings", "silver_oslo_readings", "progress"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    assert sorted(Lakehouse(str(tmp_path), called=IOT).names()) == ["bronze_events", "progress", "silver_oslo_events"]
    assert Lakehouse(str(tmp_path), called=IOT).table("bronze_events").name == "bronze_readings"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"events": "../events"}, "events"),
        ({"events": "Events"}, "events"),
        ({"aggregate": "a/b"}, "aggregate"),
        ({"aggregate": ""}, "aggregate"),
        ({"entities": "{entity}"}, "entities"),
        ({"entities": "x" * 101}, "entities"),
        ({"key": ""}, "key"),
        ({"prefix": "../"}, "prefix"),
        ({"prefix": "x" * 31}, "prefix"),
        ({"silver": "silver_{entity}_readings"}, "Extra inputs"),
    ],
)
def test_nouns_that_leave_the_root_and_templates_are_refused(given, says):
    with pytest.raises(ValidationError) as refused:
        Names(**given)
    assert says in str(refused.value)
