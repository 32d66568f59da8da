"""A stand-in for a device that is behind: what it was to do is done when a test says so, or when somebody waits."""

from __future__ import annotations


class Device:
    """Launches, of which some are done."""

    def __init__(self) -> None:
        self.launched = self.done = 0
        self.waited: list[int] = []

    def record(self) -> Event:
        self.launched += 1
        return Event(self, self.launched)


class Event:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def query(self) -> bool:
        return self.number <= self.device.done

    def synchronize(self) -> None:
        self.device.waited.append(self.number)
        self.device.done = max(self.device.done, self.number)
