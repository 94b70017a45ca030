"""The project's own plug-ins: each package is one, and names in `PLUGIN` what it brings."""
