"""The hash of `nanoset_core/sampling/hashing.py`, computed as its docstring defines it."""

STEP = 0x9E3779B97F4A7C15


def slow_mix(value):
    """SplitMix64's output function, for one Python integer."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    return value ^ (value >> 31)


def slow_hash(data):
    """The hash of one byte string, word by word."""
    total = len(data)
    for number, start in enumerate(range(0, max(len(data), 1), 8)):
        word = int.from_bytes(data[start : start + 8], "little")
        total += slow_mix((word + (number + 1) * STEP) % 2**64)
    return slow_mix(total % 2**64)
