"""Drafters compared on recorded responses, without running the target."""

from dspark_build.evaluation.comparison import CompareConfig, compare_drafters
from dspark_build.evaluation.figures import draw, figure_paths
from dspark_build.evaluation.report import markdown
from dspark_build.evaluation.results import Comparison

__all__ = ["CompareConfig", "Comparison", "compare_drafters", "draw", "figure_paths", "markdown"]
