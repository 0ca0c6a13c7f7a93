"""Makes a timeline of what a topology's YAML says of it; :mod:`emulator.topology` documents the format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from emulator import trace
from emulator.course import OUT, Course, Setting, walk
from emulator.document import Document, suggest
from emulator.timeline import Change, Timeline, Traffic, name
from emulator.topology_file import ChangeEntry, DriftEntry, Matcher, Subject, TopologyFile
from emulator.trace import Trace

if TYPE_CHECKING:
    from emulator.topology import Group, Host, Path

S = TypeVar("S", "Path", "Host", "Group")
AnyCourse = Course[Any]

Pairs = Callable[..., set[tuple[str, str]]]
"""``pairs(matcher, *location)``: (source, target) of the paths that a matcher means."""

FIELDS = {"path": ("rate", "delay", "jitter", "loss", "outage"), "host": ("up", "down"), "group": ("rate",)}
"""What a timeline may speak of."""


class TimelineReader:
    """Reads the timeline of a document whose hosts, paths and groups are read already.

    Afterwards `hosts`, `paths` and `groups` are as they are at second 0. Raises the document's refusal for whatever is
    wrong.
    """

    def __init__(self, document: Document[TopologyFile], hosts: Iterable[Host], paths: Iterable[Path],
                 groups: Iterable[Group], pairs: Pairs) -> None:
        self._document = document
        self._content = document.content.timeline
        self._pairs = pairs
        self._hosts = {host.name: Course(host) for host in hosts}
        self._paths = {(path.source, path.target): Course(path) for path in paths}
        self._groups = {group.name: Course(group) for group in groups}
        self.traces = tuple(self._trace(index) for index in range(len(self._content.traces)))
        for index in range(len(self._content.changes)):
            self._change(index)
        for index in range(len(self._content.drift)):
            self._drift(index)
        try:
            self.hosts, later_hosts = _split(self._hosts.values())
            self.paths, later_paths = _split(self._paths.values())
            self.groups, later_groups = _split(self._groups.values())
        except ValueError as error:
            raise document.refusal(str(error)) from None
        for path in self.paths:
            if path.loss == OUT:
                raise document.error("timeline", message=f"path {name(path)} is out at second 0, when the network is "
                                                         "brought up and probed; begin the outage later")
        self.timeline = Timeline(
            tuple(Change(second, later_paths[second], later_hosts[second], later_groups[second])
                  for second in sorted({*later_paths, *later_hosts, *later_groups})),
            tuple(self._traffic(index) for index in range(len(self._content.traffic))))

    def _trace(self, index: int) -> Trace:
        entry, here = self._content.traces[index], ("timeline", "traces", index)
        try:
            found = trace.read(self._document.file.parent, entry.file, self._document.refusal)
        except self._document.refusal:
            raise
        except ValueError as error:
            raise self._document.error(*here, "file", message=f"file: {error}") from None
        file = self._document.file.parent / entry.file
        ends = [moment.second for moment in found.moments[1:]] + [float("inf")]
        for course in self._path_courses(entry, *here):
            for moment, end in zip(found.moments, ends, strict=True):
                self._set(course, moment.second, moment.fields, f"{file}:{moment.line}", *here)
                if moment.out:
                    course.outages.append((moment.second, end))
        return found

    def _change(self, index: int) -> None:
        entry, here = self._content.changes[index], ("timeline", "changes", index)
        fields = self._fields(entry, *here)
        outage = fields.pop("outage", None)
        for course in self._courses(entry, *here):
            self._set(course, entry.at, fields, f"{self._document.file}:{self._document.line(*here)}", *here)
            if outage is not None:
                course.outages.append((entry.at, entry.at + outage))

    def _drift(self, index: int) -> None:
        entry, here = self._content.drift[index], ("timeline", "drift", index)
        spreads = self._fields(entry, *here)
        for course in self._courses(entry, *here):
            for field, spread in spreads.items():
                self._check_limited(course, field, *here)
                try:
                    course.walks[field] = walk(f"{entry.seed} {name(course.subject)} {field}", spread, entry.every,
                                               entry.memory, entry.until)
                except ValueError as error:
                    raise self._document.error(*here, "every", message=str(error)) from None

    def _traffic(self, index: int) -> Traffic:
        entry, here = self._content.traffic[index], ("timeline", "traffic", index)
        for end, host in (("from", entry.source), ("to", entry.target)):
            if host not in self._hosts:
                raise self._document.error(*here, end, message=f"no host {host!r}; {suggest(host, self._hosts)}")
        if entry.source == entry.target:
            raise self._document.error(*here, message=f"traffic from {entry.source!r} to itself crosses no path; name "
                                                      "two hosts")
        if entry.end <= entry.start:
            raise self._document.error(*here, "end", message=f"traffic that ends at second {entry.end:g} has not begun "
                                                             f"then, but at {entry.start:g}; write a later end")
        return Traffic(entry.source, entry.target, entry.start, entry.end, entry.rate, entry.connections,
                       self._document.line(*here))

    def _courses(self, entry: Subject, *here: str | int) -> Iterable[AnyCourse]:
        named = [(field, wanted, known) for field, wanted, known in (("host", entry.host, self._hosts),
                                                                     ("group", entry.group, self._groups)) if wanted]
        for field, wanted, known in named:
            if len(named) > 1 or entry.between or entry.source or entry.target:
                raise self._document.error(*here, message="it speaks of several things at once; write one entry for "
                                                          "paths, one for a host, one for a group")
            if wanted not in known:
                raise self._document.error(*here, field, message=f"no {field} {wanted!r}; "
                                           + (suggest(wanted, known) if known else "the topology has none"))
            return [known[wanted]]
        return self._path_courses(entry, *here)

    def _path_courses(self, matcher: Matcher, *here: str | int) -> list[Course[Path]]:
        pairs = self._pairs(matcher, *here)
        return [course for pair, course in self._paths.items() if pair in pairs]

    def _fields(self, entry: ChangeEntry | DriftEntry, *here: str | int) -> dict[str, Any]:
        """The fields that an entry gives, if they are such as its subject has."""
        kind = "host" if entry.host else "group" if entry.group else "path"
        fields = {field: value for field in dict.fromkeys(chain(*FIELDS.values()))
                  if (value := getattr(entry, field, None)) is not None}
        known = [field for field in FIELDS[kind] if field in type(entry).model_fields]
        for field in fields:
            if field not in known:
                raise self._document.error(*here, field, message=f"a {kind} has no {field}; write {', '.join(known)}")
        if not fields:
            raise self._document.error(*here, message=f"nothing happens here; add one of {', '.join(known)}")
        return fields

    def _set(self, course: AnyCourse, second: float, fields: dict[str, Any], place: str, *here: str | int) -> None:
        for field in fields:
            self._check_limited(course, field, *here)
        course.settings.append(Setting(second, fields, place))

    def _check_limited(self, course: AnyCourse, field: str, *here: str | int) -> None:
        # A limit that comes and goes would mean a queue that is built and torn down while packets are in it.
        if getattr(course.subject, field) is None:
            raise self._document.error(*here, message=f"the {field} of {name(course.subject)} is unlimited, and stays "
                                                      "so; give it one outside the timeline, as high as you like")


def _split(courses: Iterable[Course[S]]) -> tuple[tuple[S, ...], dict[float, tuple[S, ...]]]:
    """What they are at second 0, and what becomes of them, by second."""
    first: list[S] = []
    later: dict[float, tuple[S, ...]] = defaultdict(tuple)
    for course in courses:
        for second, state in course.states():
            if second == 0:
                first.append(state)
            else:
                later[second] += (state,)
    return tuple(first), later
