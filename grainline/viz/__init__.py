"""Heat maps on pixels, overlays, charts and the self-contained report."""
