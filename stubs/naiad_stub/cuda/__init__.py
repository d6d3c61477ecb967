"""Tensors in the memory of NVIDIA's GPUs, by the driver's own library. Imported when a model uses such a tensor."""
