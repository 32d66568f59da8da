"""What rank processes are told to run: functions of modules named here, called on every rank alike."""
