"""A model's whole state as files of tensors, written and read by all ranks together."""
