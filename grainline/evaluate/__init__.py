"""Retrieval and foil suites: scores in chunks, ranks with ties counted, intervals, results as JSON."""
