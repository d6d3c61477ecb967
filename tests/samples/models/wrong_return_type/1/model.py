class TritonPythonModel:
    def execute(self, requests):
        return tuple(requests)
