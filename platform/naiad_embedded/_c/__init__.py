"""The names of `tritonserver._c`, which NVIDIA's tutorials and frontends import although they are private there."""

from naiad_embedded._c.triton_bindings import *  # noqa: F403 - the package does the same: both modules have the same names
