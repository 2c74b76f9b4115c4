"""From confidence logits to survival probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Float32

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def conditional(confidence_logits: Float32, temperatures: Float64 | None = None) -> Float64:
    """c_{r,j} [R, gamma]: the probability that x_j of request r is accepted if x_1..x_{j-1} were (section 4).

    sigmoid(logit_{r,j} / T_j) of confidence_logits [R, gamma], with the STS temperatures [gamma] (None: uncalibrated,
    T = 1). A NaN logit, of a drafter without confidence head, counts as certain acceptance, so that confidence alone
    never cuts its blocks.
    """
    scaled = confidence_logits.astype(np.float64)
    if temperatures is not None:
        scaled /= temperatures
    result: Float64 = 0.5 * (1.0 + np.tanh(0.5 * scaled))  # the sigmoid, in the form that cannot overflow
    result[np.isnan(result)] = 1.0
    return result


def survival(confidence_logits: Float32, temperatures: Float64 | None = None) -> Float64:
    """a_{r,j} [R, gamma]: the probability that x_1..x_j of request r are all accepted (dspark-spec, sections 4 and 5).

    The product of c_{r,1}..c_{r,j} of `conditional`. Rows are non-increasing.
    """
    result: Float64 = conditional(confidence_logits, temperatures).cumprod(axis=1)
    return result
