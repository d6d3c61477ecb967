import dataclasses


@dataclasses.dataclass
class PoolingParams:
    dimensions: int | None = None
    task: str | None = None
