"""What commands print is what they were given."""

from game_events.cli.output import Output

ODD = "leads to [/definitions/x], [red] and topic[0]@3 [user.name]"


def test_brackets_of_other_people_are_printed_as_they_are(capfd):
    output = Output(as_json=False)
    output.say(ODD)
    output.table("a [/title]", ("detail",), [(ODD,)])
    output.step("step", f": {ODD}")
    said = capfd.readouterr().out
    assert said.count("[/definitions/x], [red]") == 3
    assert "a [/title]" in said
