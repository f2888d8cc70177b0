"""Captions taken apart into phrases: noun phrases, actions, spatial relations."""
