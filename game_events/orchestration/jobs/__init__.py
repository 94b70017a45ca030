"""Jobs and their configuration."""
