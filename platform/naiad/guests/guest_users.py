"""Users for guests: one for all of them, or one for each model (`--guest-user=auto`).

User ids separate models, because the kernel checks them for /proc, ptrace, signals and files in every container;
namespaces need rights that containers withhold. The numbers are 60706 to 61183 by default, which systemd's list has as
unused: from 61184 on, `DynamicUser=` gives them to services. All instances of a model have one user, since they share
inputs and a prewarming process.
"""

from __future__ import annotations

import pwd
import weakref

from naiad.config.server.guest_user import GuestUser, GuestUserRange
from naiad.core.errors import ResolutionError


class GuestUsers:
    """The users that guests run as.

    A model keeps its user until the range has no other number, and then for as long as anything refers to it: the
    specification of its guests. Numbers are used again as late as possible, since files in shared folders may still
    belong to them.
    """

    def __init__(self, setting: GuestUser | GuestUserRange | None) -> None:
        self._setting = setting
        self._users: weakref.WeakValueDictionary[str, GuestUser] = weakref.WeakValueDictionary()
        self._kept: dict[str, GuestUser] = {}  # until the range has no other number
        self._next, self._known = 0, frozenset[int]()
        if isinstance(setting, GuestUserRange):
            self._next = setting.first
            self._known = frozenset(entry.pw_uid for entry in pwd.getpwall())  # whose files no guest must get

    def user_of(self, model: str) -> GuestUser | None:
        """The user of the guests of *model*, None for the server's own; ResolutionError if the range is used up."""
        setting = self._setting
        if not isinstance(setting, GuestUserRange):
            return setting
        user = self._users.get(model)
        if user is None:
            try:
                user = self._unused(setting)
            except ResolutionError:
                self._kept.clear()
                user = self._unused(setting)
            self._users[model] = user
        # A model that is completed and then started, or that sleeps and wakes, finds the files it has written.
        self._kept[model] = user
        return user

    def _unused(self, numbers: GuestUserRange) -> GuestUser:
        taken = self._known.union(user.uid for user in self._users.values())
        count = numbers.last - numbers.first + 1
        for offset in range(count):
            number = numbers.first + (self._next - numbers.first + offset) % count
            if number not in taken:
                self._next = number + 1
                return GuestUser(number, number)
        raise ResolutionError(
            f"cannot give the model a user of its own: other models have all of {numbers}; name a longer range with "
            "--guest-user=auto:FIRST-LAST"
        )
