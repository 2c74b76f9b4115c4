"""What identifies this machine in the facts of an engine."""

from dspark.engines.machine import cpu_model

__all__ = ["cpu_model"]
