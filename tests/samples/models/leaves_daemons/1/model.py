import os
import subprocess
import time

import triton_python_backend_utils as pb_utils

SLEEPS = ["sleep", "600"]


class TritonPythonModel:
    """Starts processes that leave its session, as daemons do, and prints their ids."""

    def initialize(self, args):
        program = subprocess.Popen(SLEEPS, start_new_session=True)
        shell = subprocess.Popen(["setsid", "sh", "-c", "setsid sleep 600 & echo child $!; exec sleep 600"])
        forked = os.fork()
        if forked == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        for pid in (program.pid, shell.pid, forked):
            os.write(1, b"child %d\n" % pid)  # whole lines, as the shell writes another one

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        if values[0][0] < 0:
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for value in values]
