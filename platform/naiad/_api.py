"""`naiad._api`, for programs that import naiad in place of `tritonserver`: the module of `naiad_embedded`."""

from naiad_embedded.private_names import define_private_modules

define_private_modules("naiad")  # this module is replaced, too: an import returns what `sys.modules` has then
