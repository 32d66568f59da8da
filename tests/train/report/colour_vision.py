"""How far apart colours are for people who see fewer of them (Machado, Oliveira and Fernandes 2009, severity 1)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

SIGHT = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    x = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(colours: list[str]) -> tuple[float, str, tuple[str, str]]:
    """The least distance (CIE76) between two of the colours, for whom, and which two."""
    found = []
    for sight, matrix in SIGHT.items():
        for a, b in combinations(colours, 2):
            distance = np.linalg.norm(lab(matrix @ linear(a)) - lab(matrix @ linear(b)))
            found.append((float(distance), sight, (a, b)))
    return min(found)


def contrast(a: str, b: str) -> float:
    """The contrast of WCAG 2: from 1 to 21."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)
