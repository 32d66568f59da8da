"""Tables whose rows live in the memory of a GPU, and the launches that look them up and update them."""
