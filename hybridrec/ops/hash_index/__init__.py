"""From ids to slots: a hash index in memory of the device."""
