"""The command ``hpctrain``: one module a verb, which imports what it needs inside its function."""
