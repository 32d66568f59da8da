"""Lookups of tables on the GPUs of several ranks. `parallel/` has the same for CPUs, and what both have in common."""
