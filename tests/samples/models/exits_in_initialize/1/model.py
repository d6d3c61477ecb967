import os
import sys


class TritonPythonModel:
    def initialize(self, args):
        print("licence server unreachable", file=sys.stderr)
        os._exit(9)
