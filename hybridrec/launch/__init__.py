"""All processes of a run on one machine: servers and trainers are started from one file, watched, and started again."""
