"""The command line, a file for each noun: parses, calls and prints.

data      `data ...`: check, scenes, describe, phrases, pack, superpixels.
evaluate  `evaluate`, `compare`, `suites`, `encode` and `show`.
index     `index ...`, `search`, `photos`, `serve` and `export`.
main      The command line itself, and `train`, `convert` and `demo`.
options   Options that several commands share, and the progress bar.
"""
