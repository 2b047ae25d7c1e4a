"""The same files for `torch.distributed.checkpoint`, and its files for `load_state`."""

DCP_METADATA_NAME = ".metadata"
"""What that writes beside its files."""
