"""What `dspark doctor` looks at: this machine and what is installed and built on it, and what a model would need."""

from dspark_client.doctor.diagnosis import Diagnosis, diagnose
from dspark_client.doctor.findings import Finding, Level

__all__ = ["Diagnosis", "Finding", "Level", "diagnose"]
