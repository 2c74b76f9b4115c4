"""The drafter engine as a Triton model: one step a request (contract: dspark/engines/contract.py)."""

from pathlib import Path

from dspark.engines.contract import DrafterStep, EngineFolder
from dspark.engines.loading import load_drafter
from dspark.settings import ServingSettings
from dspark.triton import answer_step


class TritonPythonModel:
    def initialize(self, args):
        settings = ServingSettings.read()
        self.engine = load_drafter(EngineFolder(Path(settings.engine_folder)).drafter)

    def execute(self, requests):
        return [answer_step(request, DrafterStep, self.engine.step) for request in requests]

    def finalize(self):
        self.engine.close()
