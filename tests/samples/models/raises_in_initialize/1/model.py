class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("weights are missing")
