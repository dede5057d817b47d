"""What an architecture says of itself."""

from __future__ import annotations

from parastrat.sources.architecture import Audio, Image, Norm


def test_weights_of_a_norm_for_each_element_of_its_width() -> None:
    # RMS: a scale; layer norm: a scale and a bias, or the scale alone, or neither
    assert {norm: norm.weights for norm in Norm} == {
        Norm.RMS: 1,
        Norm.RMS_FP32: 1,
        Norm.LAYER: 2,
        Norm.UNBIASED: 1,
        Norm.COMPOSITE: 1,
        Norm.BARE: 0,
    }


def test_tokens_of_images_and_of_sound() -> None:
    # arXiv:2010.11929, section 3.1: patches and the class token
    assert Image(size=224, patch=16, channels=3, classes=1000).tokens == 14 * 14 + 1
    # arXiv:2212.04356, section 2.2: thirty seconds
    assert Audio(channels=80, frames=3000).tokens == 1500
