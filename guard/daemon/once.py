"""What has come before, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Once:
    """Remembers the last `capacity` things."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def first(self, key: Hashable) -> bool:
        """It has not come before; from now on it has."""
        new = key not in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)
        return new
