"""Compressed averages: what members send instead of float32 values, and what they keep until the next call.

``Compression`` is the interface, ``Reduction`` what it works on: one bucket in one call. ``Pipeline`` carries out the
operations of all buckets, ``CallMemory`` holds what is kept from call to call.
"""
