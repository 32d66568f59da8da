"""Rows in two tiers: hot ones in slots of a card, cold ones in memory of the host."""
