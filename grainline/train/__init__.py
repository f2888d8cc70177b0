"""Training: one step, the loop around it, and what it writes."""
