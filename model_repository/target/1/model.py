"""The target engine as a Triton model: one step a request (contract: dspark/engines/contract.py)."""

from pathlib import Path

from dspark.engines.contract import EngineFolder, TargetStep
from dspark.engines.loading import load_target
from dspark.settings import ServingSettings
from dspark.triton import answer_step


class TritonPythonModel:
    def initialize(self, args):
        settings = ServingSettings.read()
        self.engine = load_target(EngineFolder(Path(settings.engine_folder)).target, settings.threads)

    def execute(self, requests):
        return [answer_step(request, TargetStep, self.engine.step) for request in requests]

    def finalize(self):
        self.engine.close()
