"""Export of rows over HTTP."""
