"""The Spark session: its configuration, Spark Connect, code on its way to workers, workers that died."""
