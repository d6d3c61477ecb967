"""The names of `tritonserver._c`, which NVIDIA's tutorials and frontends import although they are private there."""

from naiad_embedded._c import triton_bindings

# The package does the same: both modules have the same names.
globals().update({name: value for name, value in vars(triton_bindings).items() if not name.startswith("_")})
