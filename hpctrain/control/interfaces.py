"""The network interfaces of this machine."""

from __future__ import annotations

import fcntl
import socket
import struct

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915
# To containers and virtual machines of this host; on other hosts they often have the same address.
_BRIDGES = ("br-", "cni", "docker", "lxc", "lxd", "podman", "virbr")


def ipv4_addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one. Not collective.

    Last are those at which other hosts hardly find this one: bridges, link-local, loopback.
    """
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(
                    probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
                )
            except OSError:  # an interface without an IPv4 address
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(addresses.items(), key=lambda item: _distance(*item)))


def _distance(name: str, address: str) -> int:
    if is_loopback(address):
        return 2
    return int(name.startswith(_BRIDGES) or address.startswith("169.254."))


def address_of_name(hostname: str) -> str | None:
    """Return the IPv4 address that this machine knows a host by, if any. Not collective."""
    try:
        return socket.gethostbyname(hostname)
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """Return whether an address always means the machine that uses it. Not collective."""
    return address.startswith("127.")
