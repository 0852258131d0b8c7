"""Devices by name: peak rate, memory, and a price that is an assumption."""

from dataclasses import dataclass

from loopworth.spec.checks import hint


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    peak_flops is the dense bf16 rate in FLOP/s of the maker's data sheet, memory_bytes what it
    carries. price_per_hour, in US dollars, is an assumption of the order that clouds ask for on
    demand; give your own.
    """

    name: str
    title: str
    peak_flops: float
    memory_bytes: float
    price_per_hour: float


_GIB = 2**30
DEVICES = {
    device.name: device
    for device in (
        Device("h100", "NVIDIA H100 SXM", 989e12, 80 * _GIB, 3.0),
        Device("h200", "NVIDIA H200 SXM", 989e12, 141 * _GIB, 3.5),
        Device("b200", "NVIDIA B200", 2250e12, 180 * _GIB, 5.5),
        Device("a100", "NVIDIA A100 SXM", 312e12, 80 * _GIB, 1.8),
        Device("l40s", "NVIDIA L40S", 362e12, 48 * _GIB, 1.2),
        Device("rtx4090", "NVIDIA GeForce RTX 4090", 165e12, 24 * _GIB, 0.5),
        Device("mi300x", "AMD Instinct MI300X", 1307e12, 192 * _GIB, 3.0),
    )
}


def device(name: str) -> Device:
    """Return a device by its name.

    >>> device("h100").title
    'NVIDIA H100 SXM'
    """
    if name.lower() not in DEVICES:
        raise ValueError(f"device={name!r} is unknown; {hint(name.lower(), list(DEVICES))}")
    return DEVICES[name.lower()]
