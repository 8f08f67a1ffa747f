"""What can go wrong with a lease."""

from __future__ import annotations


class LeaseError(Exception):
    """A lease that cannot be had, or a lock folder that cannot be used; the message says what to do."""


class NoDeviceError(LeaseError):
    """This machine has no such GPUs, or none that this process may see: waiting would not help."""


class LeaseTimeoutError(LeaseError):
    """There are such GPUs, and others held them, or their memory, for as long as the request was ready to wait."""
