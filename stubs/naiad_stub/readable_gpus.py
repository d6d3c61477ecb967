"""Which GPUs' memory this process can use, for the host: it passes on no tensor that its reader could not use.

`CUDA_VISIBLE_DEVICES` may differ between guests, and their models may set it themselves, so each guest finds out.
"""

from __future__ import annotations

from naiad_stub.channel import Channel
from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import READABLE_GPUS, Notification, pack

_ON_GPU = "GPU"


class ReadableGpus:
    """Reports them once, when the model begins to use GPU memory.

    Args:
        channel: To the host.
        kind: The instance's kind.
        device_id: Its GPU.
    """

    def __init__(self, channel: Channel, kind: str, device_id: int) -> None:
        self._channel = channel
        self._own = device_id if kind == _ON_GPU else -1
        self._has_any = False
        self._is_reported = False

    def report(self) -> bool:
        """Report them, unless that has been done; whether there are any. Loads the driver."""
        if not self._is_reported:
            from naiad_stub.cuda.driver import readable_gpus

            try:
                found = readable_gpus(self._own)
            except TritonModelException:  # without a driver, or a GPU
                found = []
            self._has_any = bool(found)
            self._is_reported = True
            uuids = " ".join([uuid.hex() for uuid in found])
            self._channel.post(pack(Notification(READABLE_GPUS, {"uuids": uuids})))
        return self._has_any
