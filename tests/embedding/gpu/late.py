"""A stand-in for a device that is behind: what it was to do is done when a test says so, or when somebody waits."""

from __future__ import annotations

from collections.abc import Callable


class Device:
    """Launches, of which some are done; where it stands for a real one, `wait` has that be done with them too."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.launched = self.done = 0
        self.wait = wait
        self.waited: list[int] = []

    def record(self) -> Event:
        self.launched += 1
        return Event(self, self.launched)


class Event:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def query(self) -> bool:
        done = self.number <= self.device.done
        if done:
            self.device.wait()
        return done

    def synchronize(self) -> None:
        self.device.wait()
        self.device.waited.append(self.number)
        self.device.done = max(self.device.done, self.number)
