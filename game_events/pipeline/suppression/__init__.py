"""Erased players are kept out of what is read later."""
