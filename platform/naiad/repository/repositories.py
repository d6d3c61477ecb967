"""All repositories of a server, wherever they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from naiad.lifecycle.polling import Look, Signature
from naiad.repository.layout import ModelFiles, RepositoryScan, combine
from naiad.repository.place import LocalPlace, Place
from naiad.repository.remote import RemotePlace
from naiad.storage.locations import has_scheme
from naiad.storage.opening import open_storage

__all__ = ["Repositories", "open_repositories"]


class Repositories:
    """Repositories in order; everything blocks.

    Attributes:
        is_namespaced: Whether each is a namespace, so that models of several may have one name.
    """

    def __init__(self, places: Iterable[Place] = (), *, is_namespaced: bool = False) -> None:
        self.is_namespaced = is_namespaced
        # One repository named twice is one repository.
        self._places = list({place.given: place for place in places}.values())
        self._by_directory = {place.directory: place for place in self._places}
        self._renamed: dict[str, Mapping[str, str]] = {}

    def add(self, place: Place, names: Mapping[str, str] | None = None) -> None:
        """Take one more repository, whose models have other names where *names* has some for their directories'."""
        self._renamed[place.given] = names or {}
        self._by_directory = {**self._by_directory, place.directory: place}
        self._places = [*self._places, place]  # anew: other threads may be reading the list

    def remove(self, given: str) -> bool:
        """Forget a repository by how it was named; whether there was one. What serves goes on serving."""
        gone = [place for place in self._places if place.given == given]
        self._places = [place for place in self._places if place.given != given]
        for place in gone:
            self._by_directory = {key: each for key, each in self._by_directory.items() if each is not place}
            place.close()
        self._renamed.pop(given, None)
        return bool(gone)

    @property
    def given(self) -> Sequence[str]:
        """How they were named."""
        return [place.given for place in self._places]

    def scan(self) -> RepositoryScan:
        """What they hold.

        Raises:
            NaiadError: If one cannot be read.
        """
        return combine(self._files(place, name) for place in self._places for name in place.names())

    def stored(self) -> list[ModelFiles]:
        """What they hold, at once: as of the last scan where that is dear to know."""
        return [self._files(place, name) for place in self._places for name in place.stored()]

    def look(self) -> tuple[RepositoryScan, Look]:
        """What they hold and what that looks like, by key; what two of them hold is left out of the look."""
        looks = [(place, place.look()) for place in self._places]
        found = combine(self._files(place, name) for place, look in looks for name in look)
        seen: dict[str, Signature | None] = {}
        for place, look in looks:
            for name, signature in look.items():
                key = self._files(place, name).key
                if key in found.models:
                    seen[key] = signature
        return found, seen

    def fetch(self, files: ModelFiles) -> None:
        """Have the files of a model here; nothing to do for files that no repository holds.

        Raises:
            NaiadError: If they cannot be had.
        """
        place = self._by_directory.get(files.repository)
        if place is not None:
            place.fetch(files.directory.name)

    def close(self) -> None:
        """Delete what was copied here."""
        for place in self._places:
            place.close()

    def _files(self, place: Place, name: str) -> ModelFiles:
        other = self._renamed.get(place.given, {}).get(name)
        return ModelFiles(
            name=name if other is None else other,
            is_renamed=other is not None,
            repository=place.directory,
            directory=place.directory / name,
            namespace=place.given if self.is_namespaced else "",
            uri=f"{place.given}/{name}" if has_scheme(place.given) else "",
        )


def open_repositories(
    named: Iterable[Path | str], *, is_namespaced: bool = False, environ: Mapping[str, str] | None = None
) -> Repositories:
    """Open repositories: folders by path, others by URI.

    Raises:
        StorageError: If a URI cannot be used.
    """
    environ = os.environ if environ is None else environ
    places: list[Place] = []
    try:
        for each in named:
            if isinstance(each, Path):
                places.append(LocalPlace(each.absolute()))
            else:
                places.append(RemotePlace(open_storage(each, environ), environ))
    except BaseException:
        for place in places:
            place.close()
        raise
    return Repositories(places, is_namespaced=is_namespaced)
