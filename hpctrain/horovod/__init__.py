"""Horovod: `hpctrain install horovod`."""
