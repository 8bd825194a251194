"""Colours are checked, not believed: contrast with the paper, distance under each kind of colour vision."""

from itertools import combinations

import numpy as np
import pytest

from batuta.report import plot

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour):
    part = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    cone = np.cbrt(
        np.clip(rgb, 0, None) @ np.array([[0.4122, 0.2119, 0.0883], [0.5363, 0.6807, 0.2817], [0.0514, 0.1074, 0.6300]])
    )
    return cone @ np.array([[0.2105, 1.9780, 0.0259], [0.7936, -2.4286, 0.7828], [-0.0041, 0.4506, -0.8087]])


@pytest.mark.parametrize("theme", [plot.LIGHT, plot.DARK], ids=["light", "dark"])
class TestTheme:
    def test_text_is_readable(self, theme):
        for ink in ("ink", "muted", "accent"):
            for paper in ("paper", "card"):
                assert contrast(theme[ink], theme[paper]) >= 4.5
        assert contrast(theme["good-ink"], theme["good"]) >= 4.5
        assert contrast(theme["ink"], theme["warn"]) >= 4.5

    def test_series_stand_out_from_the_paper(self, theme):
        assert all(contrast(theme[f"p{k}"], theme["paper"]) >= 3 for k in range(plot.SERIES))

    @pytest.mark.parametrize("vision", VISION)
    def test_series_can_be_told_apart(self, theme, vision):
        seen = [oklab(VISION[vision] @ linear(theme[f"p{k}"])) for k in range(1, plot.SERIES)]
        # Okabe and Ito's own colours come to 0.076.
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= 0.08

    def test_sizes_go_one_way_in_lightness(self, theme):
        steps = np.diff([oklab(linear(theme[f"z{k}"]))[0] for k in range(plot.SIZES)])
        assert (steps > 0.04).all() or (steps < -0.04).all()


def test_themes_have_the_same_names():
    assert plot.LIGHT.keys() == plot.DARK.keys()


def test_the_first_twenty_series_look_different():
    assert len({plot.series_class(k) for k in range(20)}) == 20


@pytest.mark.parametrize(("gpus", "label"), [(1, "1"), (2, "2"), (3, "3–4"), (8, "5–8"), (9, "9–16"), (500, "33+")])
def test_shades_of_sizes(gpus, label):
    assert plot.SIZE_LABELS[plot.size_shade(gpus)] == label
