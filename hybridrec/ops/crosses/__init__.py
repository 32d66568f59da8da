"""The layers of a cross network, x0 * (W x + b) + x, and their gradients."""
