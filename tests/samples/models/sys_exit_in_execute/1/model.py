import sys


class TritonPythonModel:
    def execute(self, requests):
        sys.exit("enough")
