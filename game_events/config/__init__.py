"""Settings, and what is read from them: names, credentials, extensions."""
