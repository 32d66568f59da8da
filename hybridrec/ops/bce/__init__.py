"""Binary cross entropy of logits, summed with weights, and its gradient."""
