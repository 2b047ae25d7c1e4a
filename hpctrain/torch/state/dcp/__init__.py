"""The same files for `torch.distributed.checkpoint`, and its files for `load_state`."""
