"""Commands for the local stack and the demo."""
