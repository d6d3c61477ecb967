class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        raise ValueError("no answer to that \u00e4\ud800")
