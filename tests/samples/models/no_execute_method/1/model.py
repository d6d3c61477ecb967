class TritonPythonModel:
    def initialize(self, args):
        self.args = args
