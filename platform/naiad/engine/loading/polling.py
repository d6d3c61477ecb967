"""Poll mode: the repositories are polled for changes; changed models are loaded, reloaded or unloaded.

What to do about two snapshots is decided by `naiad.engine.lifecycle.polling`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from naiad.core import blocking
from naiad.core.errors import NaiadError
from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.loading.unchanged import environments_signature
from naiad.engine.registry import Registry
from naiad.models.polling import Signature, Snapshot, are_versions, changed_entries, due_retries, plan_changes
from naiad.models.repository.layout import (
    DUPLICATE_REASON,
    ModelFiles,
    RepositoryScan,
    available_versions,
    version_number,
)
from naiad.models.repository.repositories import Repositories

logger = logging.getLogger("naiad.engine")

_SETTLE_SECONDS = 2.0
_PATIENCE = 30  # looks in a row, at things that go on changing, before the usual pause is taken again
_HOUR = 3600.0


class Poller:
    """Looks at repositories and has the models follow them."""

    def __init__(self, repositories: Repositories, order: LoadOrder, registry: Registry, seconds: int) -> None:
        """Make one that has seen nothing; 0 *seconds* between polls are an hour, as for the reference."""
        self._repositories = repositories
        self._order = order
        self._registry = registry
        self._pause = float(seconds) or _HOUR
        self._settle = min(_SETTLE_SECONDS, self._pause)
        self._loaded: dict[str, Signature] = {}
        self._before: Snapshot = {}
        self._failed: dict[str, int] = {}  # when a model failed first since its files changed, in regular looks
        self._count = 0
        self._one_at_a_time = asyncio.Lock()

    def begin(self, snapshot: Snapshot, outcomes: Mapping[str, BaseException | None]) -> None:
        self._before = snapshot
        self._note(snapshot, outcomes)

    async def run(self) -> None:
        in_a_row = 0
        while True:
            in_a_row = in_a_row % _PATIENCE
            await asyncio.sleep(self._settle if in_a_row else self._pause)
            try:
                unsettled = await self.poll_once(is_regular=not in_a_row)
            except Exception:
                logger.exception("cannot poll the model repositories")
                unsettled = False
            in_a_row = in_a_row + 1 if unsettled else 0

    async def poll(self) -> None:
        """Poll until what changed is loaded: at most as long as something that settles needs."""
        for _ in range(_PATIENCE):
            if not await self.poll_once(is_regular=True):
                return
            await asyncio.sleep(self._settle)

    async def poll_once(self, *, is_regular: bool) -> bool:
        async with self._one_at_a_time:
            try:
                found, now = await blocking.run(self._snapshot)
            except NaiadError as error:  # a repository that cannot be read is not one that is empty
                logger.error("%s; models stay as they are", error.message)  # noqa: TRY400 - the operator's
                return False
            decided = plan_changes(self._loaded, self._before, now)
            self._before = now
            self._count += is_regular
            retries = due_retries(self._failed, self._count) if is_regular else []
            sources = {
                key: self._source(found.models[key], now[key])
                for key in dict.fromkeys((*decided.load, *(key for key in retries if now.get(key) is not None)))
            }
            if sources or decided.unload:
                logger.info("model repositories changed: %s", _told(sources, decided.unload))
                outcomes = await self._order.update(sources, decided.unload)
                self._forget(decided.unload)
                self._note(now, outcomes)
            self._note_duplicates(found)
            return bool(decided.unsettled)

    def _snapshot(self) -> tuple[RepositoryScan, Snapshot]:
        found, now = self._repositories.snapshot()
        return found, {key: self._with_environments(key, signature) for key, signature in now.items()}

    def _with_environments(self, key: str, signature: Signature | None) -> Signature | None:
        model = self._registry.known(key)
        if signature is None or model is None:
            return signature
        own = {path: state for path, state in signature.items() if not path.startswith("/")}
        return {**own, **environments_signature(model)}

    def _source(self, files: ModelFiles, signature: Signature | None) -> ModelSource:
        """The model to be loaded; of its versions, those that did not change are to stay."""
        before = self._loaded.get(files.key)
        if before is None or signature is None or files.key in self._failed:
            return ModelSource(files=files)
        parts = changed_entries(before, signature)
        if not are_versions(parts, signature):
            return ModelSource(files=files)
        changed = {version_number(part) for part in parts}
        return ModelSource(files=files, kept=frozenset(available_versions(files).keys() - changed))

    def _note(self, snapshot: Snapshot, outcomes: Mapping[str, BaseException | None]) -> None:
        for key, error in outcomes.items():
            # Again, because a load may have changed which files its environments are.
            signature = self._with_environments(key, snapshot.get(key))
            if signature is None:
                continue  # it could not be read completely: the next signature counts as a change
            is_new = signature != self._loaded.get(key)
            self._loaded[key] = signature
            if error is None:
                self._failed.pop(key, None)
            elif is_new or key not in self._failed:
                self._failed[key] = self._count
            if error is not None and not isinstance(error, NaiadError):
                logger.error("loading '%s' failed", key, exc_info=error)

    def _forget(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            del self._loaded[key]
            self._failed.pop(key, None)

    def _note_duplicates(self, found: RepositoryScan) -> None:
        for key in found.duplicates.keys() - self._loaded.keys():
            self._registry.record(key).reason = DUPLICATE_REASON
        for model in self._registry:
            if model.reason == DUPLICATE_REASON and model.key not in {*found.duplicates, *found.models}:
                self._registry.forget_failures(model.key)


def _told(sources: Mapping[str, ModelSource], gone: tuple[str, ...]) -> str:
    parts = [f"load {', '.join(sources)}" if sources else "", f"unload {', '.join(gone)}" if gone else ""]
    return "; ".join(part for part in parts if part)
