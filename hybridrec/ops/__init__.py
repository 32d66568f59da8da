"""Kernels, a folder each: the maths in README.md, plain code in reference.py, the fast form beside it."""
