"""Rows that were sent twice, in different runs: the second run compares new rows with what the first has brought to silver."""

from game_events_tests.integration.silver.test_duplicates import EVENT_ID, Sent, assert_kept, refresh


def test_a_key_may_name_the_game_which_is_compared_anyway(make_settings, make_pipeline):
    sent = Sent(9)
    pipeline = make_pipeline(make_settings(deduplicate=[EVENT_ID | {"key": ["game_name", "event_id"]}]))
    for _ in range(2):
        sent.send(pipeline, 40)
        refresh(pipeline)
        assert assert_kept(pipeline, sent.events, [EVENT_ID])
