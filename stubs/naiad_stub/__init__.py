"""The guest: loads a model.py in its own interpreter and serves it. Standard library and numpy only, Python 3.8+.

Where to find what:

- Shared with the host: `wire`, `messages`, `layout`, `segment`, `memo`, `busy_poll`.
- Start and main loop: `main`, `lifeline`, `model_loading`, `loader`, `debugging`, `serving`, `readiness`, `forkserver`;
  what models may do to their process: `primitives`, `descriptors`, `process_group`.
- Requests and responses: `channel`, `exchange`, `execution`, `sender`, `blocks`.
- What a model asks of the server: `calls`, `forked_calls`, `queries`, `control`, `metrics`, `host_metrics`, `logger`.
- The names of `pb_utils`: `api`, `tensor`, `request`, `response`, `exceptions`, `arguments`, `parameters`, `datatypes`,
  `dlpack`; behind them `runtime`. An older dialect: `dialect`, `dialect_api`.
"""
