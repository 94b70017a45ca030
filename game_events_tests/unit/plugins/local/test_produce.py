"""`game-events produce`."""

import pytest


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--versions", "two"), "--versions: 'two' is no number"),
        (("--versions", "99"), "--versions: Input should be less than or equal to 10"),
        (("--interleaving", "1,x"), "--interleaving: '1,x' is no number"),
        (("--interleaving", "1,1"), "interleaving must hold exactly the versions (1, 2)"),
        (("--games", ""), "--games: Tuple should have at least 1 item"),
        (("--games", "a,a"), "games names a game twice"),
        (("--bulk", "5", "--games", "0"), "--games"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_the_options_name(cli, options, hint):
    found = cli("produce", *options, "--json")
    assert found.code == 1
    assert hint in found.err
    assert hint in found.result["error"]
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    "options",
    [
        ("--records", "0"),
        ("--rate", "0"),
        ("--poison-share", "1.5"),
        ("--late-share", "-1"),
        ("--partitions", "0"),
        ("--bulk", "0"),
    ],
)
def test_a_number_out_of_range_is_wrong_usage(cli, options):
    found = cli("produce", *options)
    assert found.code == 2
    assert options[0] in found.err
    assert "Invalid value" in found.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--records", "100"),
        ("--rate", "5"),
        ("--late-share", "0.5"),
        ("--duplicate-share", "0"),
        ("--poison-share", "0.1"),
        ("--interleaving", "1,1,2"),
    ],
)
def test_an_option_that_a_bulk_load_cannot_heed_is_wrong_usage(cli, option, value):
    found = cli("produce", "--bulk", "50", option, value)
    assert found.code == 2
    assert f"Invalid value for {option}: not with --bulk" in " ".join(found.err.split())


def test_the_share_of_the_hot_game_without_a_bulk_load_is_wrong_usage(cli):
    found = cli("produce", "--hot-share", "0.5")
    assert found.code == 2
    assert "Invalid value for --hot-share: only with --bulk" in " ".join(found.err.split())


def test_a_file_that_is_no_manifest_is_named_before_anything_is_sent(cli, tmp_path):
    wrong = tmp_path / "notes.txt"
    wrong.write_text("not a manifest")
    found = cli("produce", "--manifest", str(wrong))
    assert found.code == 1
    assert f"--manifest: {wrong} is a file, but no manifest" in found.err
    assert wrong.read_text() == "not a manifest"
