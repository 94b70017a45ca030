"""Settings of sources of records: logins, topics without frames, several sources."""
