"""Settings: what users say, from the environment, `.env` and YAML."""
