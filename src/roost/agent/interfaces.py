"""Which network interface has an address of this machine's."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_IF_INET6: Final = Path("/proc/net/if_inet6")


def interface_of(host: str) -> str | None:
    """Its name; `None`: no interface has that address, or it can't be learnt."""
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return None
    if wanted.is_loopback:
        return "lo"
    if isinstance(wanted, ipaddress.IPv6Address):
        return _of_v6(wanted)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no address of that kind
            if answer[20:24] == wanted.packed:
                return name
    return None


def _of_v6(wanted: ipaddress.IPv6Address) -> str | None:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) == 6 and words[0] == wanted.packed.hex():
            return words[5]
    return None
