"""The classes of the API under the name of the reference's extension module, for tests, notebooks and editors.

In a guest the stub makes a module of this name itself and nothing imports this file. Importing the utils puts that
module in the place of this one.
"""

import triton_python_backend_utils  # noqa: F401 - the import replaces this module in `sys.modules`
