"""The run as actions see it: the only place where the guard changes tensors, rates, precision and data."""
