"""From confidence logits to survival probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Float32

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def survival(confidence_logits: Float32, temperatures: Float64 | None = None) -> Float64:
    """a_{r,j} [R, gamma]: the probability that x_1..x_j of request r are all accepted (dspark-spec, sections 4 and 5).

    a_{r,j} = prod_{i<=j} sigmoid(logit_{r,i} / T_i) of confidence_logits [R, gamma], with the STS temperatures [gamma]
    (None: uncalibrated, T = 1). A NaN logit, of a drafter without confidence head, counts as certain acceptance, so
    that confidence never cuts its blocks. Rows are non-increasing.
    """
    scaled = confidence_logits.astype(np.float64)
    if temperatures is not None:
        scaled /= temperatures
    conditional = 0.5 * (1.0 + np.tanh(0.5 * scaled))  # the sigmoid, in the form that cannot overflow
    conditional[np.isnan(conditional)] = 1.0
    result: Float64 = conditional.cumprod(axis=1)
    return result
