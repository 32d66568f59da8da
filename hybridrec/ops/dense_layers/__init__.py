"""Linear layers with relu between them, and their gradients, for matrix units of GPUs."""
