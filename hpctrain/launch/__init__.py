"""The user's process: decide where the run runs, hand it over, and follow it."""
