"""Tables on a card beside tables in memory of the host, in one collection."""
