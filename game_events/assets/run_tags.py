"""Tags of runs: what a run does by itself, why it was started, who tells of its failure (its process: `process_tag.py`)."""

#: The run brings every layer up to date by itself: automation has nothing to add to what it logs.
CARRIES = "game_events/carries"
ALL_LAYERS = "all"
CARRIES_ALL = {CARRIES: ALL_LAYERS}
#: A run that replaces rows of tables: continuous mode waits for it.
ROW_CHANGING_TAG = "game_events/changes_rows"
#: A continuous run that came to its end as it was told to, whatever failed on its way: nobody wants it started again.
ENDED_BY_ITSELF = "game_events/ended_by_itself"
#: A continuous run that ended because it had lasted long enough: the next one takes its place.
HANDED_OVER = "game_events/handed_over"
#: Why the run was started.
REASON = "game_events/reason"
#: The run's own process sends its alerts (the command line, where no daemon may be running).
OWN_ALERTS = "game_events/own_alerts"
