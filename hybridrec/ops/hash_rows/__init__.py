"""Rows that come and go in memory of the device."""
