import logging
import sys

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        logging.basicConfig(level=logging.INFO)
        print("first line\nsecond line")
        print("words to stderr", file=sys.stderr)
        logging.getLogger("my.model").warning("words to logging")
        pb_utils.Logger.log_info("words to the server")
        pb_utils.Logger.log_error("bad words to the server")
