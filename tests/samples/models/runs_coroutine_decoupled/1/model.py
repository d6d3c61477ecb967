"""The same as `runs_code`, as a coroutine."""

import textwrap

import code_tools as tools


class TritonPythonModel:
    async def execute(self, requests):
        scope = dict(vars(tools), model=self, requests=requests, request=requests[0])
        exec("async def run():\n" + textwrap.indent(tools.text_of(requests[0]), "    "), scope)
        return await scope["run"]()
