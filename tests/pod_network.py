"""Network of the test cluster's pods."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_BRIDGE = Path("/sys/class/net/kt0")
"""The test cluster's network of pods."""
_CHOSEN = "3"
"""How Linux says that an interface's address was chosen (NET_ADDR_SET of its if_link.h), and so stays."""


def steady_bridge() -> None:
    """Let the bridge of the pods keep its hardware address, where the test cluster is up.

    Left alone, a bridge takes the lowest address of its ports. When the pod with the lowest one comes or
    goes, all others send to an address that is gone, until Linux looks it up again: up to a minute without
    a network, longer than the 30 seconds in which a pod that must go can store its log.
    """
    if os.geteuid() or not _BRIDGE.exists() or (_BRIDGE / "addr_assign_type").read_text().strip() == _CHOSEN:
        return
    now = (_BRIDGE / "address").read_text().strip()
    address = now if now.strip("0:") else "02:00:0a:58:00:01"  # it has none before its first port
    subprocess.run(["ip", "link", "set", _BRIDGE.name, "address", address], check=False)  # it tells of errors
