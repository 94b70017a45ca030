"""Java: fetched jars, the Java executable, private folders."""
