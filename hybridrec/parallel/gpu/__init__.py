"""Lookups of tables whose rows lie on the GPUs of several ranks. `parallel/` has the same for CPUs, and what is common."""
