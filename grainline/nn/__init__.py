"""Parts that belong to no paper."""
