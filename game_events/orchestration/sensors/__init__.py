"""Sensors: cheap, bounded in time, with a cursor; what cannot be reached is a skip with a reason."""
