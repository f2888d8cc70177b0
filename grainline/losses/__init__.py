"""Losses as pure functions: mine against everyone's, no ranks, no parameters, no state."""
