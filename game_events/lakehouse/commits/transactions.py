"""Application transaction ids (`txn`) of the Delta logs: what makes each step exactly-once."""

from __future__ import annotations

#: Records of one task: fewer tasks for small slices, as each costs ~100 ms of its own.
TASK_RECORDS = 500_000
#: Times a slice is planned again after rivals won.
RIVAL_ATTEMPTS = 50

#: Times games are planned again (rivals, games that are ahead of the floor) before a run gives up on them.
ATTEMPTS = 10

#: `txn` of bronze with the batch of the last replay; of quarantine, followed by bronze's id, with the last one noted.
REPLAY_APP = "replay"

#: `txn` of bronze with the ticket of its last full refresh; of quarantine, followed by bronze's id, with the last one finished.
RESET_APP = "reset"
#: Value of quarantine's column `layer` for records that did not decode.
LAYER = "bronze"

#: `txn` of quarantine: commits of slices, and of full refreshes of bronze.
SLICES_APP = "slices"

#: `txn` of bronze with the number of its last batch: whatever adds rows, or replaces them, moves it.
BATCH_APP = "batch"
#: `txn` of silver that counts how often its rows were replaced: gold that was made from the old ones begins anew.
#: Of bronze: the first batch after its rows were replaced.
GENERATION_APP = "generation"
#: `txn` that counts how often gamers were erased from a table. Bronze's goes up before its rows are looked for, too: whoever
#: planned from a version before stages anew. Silver has a second one, followed by bronze's id: bronze's count when rows went.
ERASED_APP = "erasures"
