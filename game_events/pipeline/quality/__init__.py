"""Rules for rows."""
