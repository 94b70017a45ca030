"""SIGKILL at a failpoint. A folder of its own, because child processes have it in their `PYTHONPATH`."""
