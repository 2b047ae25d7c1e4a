"""The executor: it lives where the ranks live, starts them, watches them, and starts them again."""
