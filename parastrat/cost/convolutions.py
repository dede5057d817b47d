"""What tells convolutions from other products: images that are read again, transforms, and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.rates import sustained_flops_per_s
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.cost.operators import Products
    from parastrat.hardware import Device
    from parastrat.units import Numbers

#: what a filter of 3 x 3 at every pixel reads of each
_THREE_BY_THREE = 9.0
#: its multiplications over those by Winograd's transform of tiles of 2 x 2, F(2 x 2, 3 x 3)
#: (Lavin and Gray, arXiv:1509.09308, section 4.1)
_TRANSFORMED = 36 / 16


def in_tensor_cores(device: Device, precision: Precision) -> bool:
    """Return whether convolutions run in tensor cores.

    In fp32 they read ten bits less there, which torch allows convolutions though not matrix products
    (``torch.backends.cudnn.allow_tf32``, on by default: https://docs.pytorch.org/docs/stable/notes/cuda.html).
    """
    return precision is not Precision.FP32 or bool(device.sustained.tf32)


def rate_of_convolutions(device: Device, precision: Precision) -> float:
    """Return the rate that large convolutions approach."""
    if precision is Precision.FP32 and device.sustained.tf32:
        return device.sustained.tf32
    return sustained_flops_per_s(device, precision)


def transformed(facts: Facts, products: Products) -> Any:
    """Return how many times fewer multiplications each product takes than its FLOPs say.

    cuDNN has Winograd's transform for filters of 3 x 3 at every pixel, forward and backward, outside tensor
    cores (https://docs.nvidia.com/deeplearning/cudnn/, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD).
    """
    if in_tensor_cores(facts.hardware.device, facts.workload.precision):
        return 1.0
    return np.where(products.convolution & (products.reuse == _THREE_BY_THREE), _TRANSFORMED, 1.0)


def relaid_elements(facts: Facts, products: Products) -> Numbers:
    """Return the elements of a sample that each convolution's forward reads and writes for channels last.

    Tensor cores want them so. Where tensors have them first, a convolution puts its input in order and its
    output back (https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/, tensor
    layouts); compiled graphs choose the layout for all of them together.
    """
    stack, precision = facts.stack, facts.workload.precision
    ordered = stack.kernels.compiled or (stack.channels_last and precision is not Precision.FP32)
    if ordered or not in_tensor_cores(facts.hardware.device, precision):
        return np.zeros(len(products.m))
    moved: Numbers = 2 * products.convolution * products.m * (products.k / products.reuse + products.n)
    return moved
