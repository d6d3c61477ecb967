"""An endpoint of the Model Context Protocol: models as tools of agents.

`endpoint` is the transport over HTTP with the messages of JSON-RPC, `tools` describes models as tools, `tensors`
converts arguments and results.
"""
