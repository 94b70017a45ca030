"""Settings, and what is derived from them: names, credentials, extensions."""
