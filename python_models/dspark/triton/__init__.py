"""The library's border with Triton's Python backend; importable only inside a Triton model process."""

from dspark.triton.metrics import RoundMetrics
from dspark.triton.outbox import Outbox
from dspark.triton.requests import TritonSink, request_tensors, triton_error
from dspark.triton.steps import answer_step, remote_step

__all__ = ["Outbox", "RoundMetrics", "TritonSink", "answer_step", "remote_step", "request_tensors", "triton_error"]
