"""Fails while it is loaded."""


class TritonPythonModel:
    def initialize(self, args):
        raise FileNotFoundError("there are no weights at all. Somebody has to fetch them")
