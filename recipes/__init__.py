"""Complete runs as small Python functions: `python -m recipes.NAME` from the root of the repository."""
