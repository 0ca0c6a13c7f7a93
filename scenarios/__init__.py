"""Experiments: scenarios as YAML, and what runs, fits, compares and reports them."""
