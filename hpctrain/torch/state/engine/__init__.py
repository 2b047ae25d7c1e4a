"""Blocks on their way: from files to ranks, and from live tensors into snapshots."""
