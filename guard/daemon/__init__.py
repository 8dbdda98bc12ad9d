"""Outside the training process: what starts it, watches it, and starts it again. Loads no torch."""
