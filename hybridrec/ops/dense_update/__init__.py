"""The step of a torch optimizer over all parameters in one launch."""
