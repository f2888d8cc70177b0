"""Things that turn pixels or token ids into tokens. Each file: config, then class."""
