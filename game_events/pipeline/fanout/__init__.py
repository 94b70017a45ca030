"""One Spark job that writes many tables."""
