"""Simulated game events: a repeatable stream, its schemas in the registry, its records in Kafka, the truth about them.

Nothing in here is read by the pipeline: tests, benchmarks and the command line compare the tables with the manifest.
"""
