raise ImportError("a file beside a model hides the module of Python")
