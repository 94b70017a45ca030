"""Settings by group: each class is a part of `Settings`, and a mapping of the YAML file."""
