"""YAML documents whose every error names the file and the line.

PyYAML composes a file into nodes that know their lines; this turns them into plain data, and a map from each
location in the data to its line. pydantic checks the data against a model made of sections, and what it refuses is
found in that map. So whatever is wrong with a file, it is one :class:`DocumentError`: where, what, and the mend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from emulator.units import shown

Location = tuple[str | int, ...]


class DocumentError(ValueError):
    """A file that is refused. The message starts with ``file:line: ``, or with ``file: `` if it cannot be read."""


class Section(BaseModel):
    """A mapping of a document: only the fields that its class names, a misspelt one answered with a suggestion."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, data: Any) -> Any:
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        if not isinstance(data, dict):
            raise PydanticCustomError("section", "{found} is no mapping; write fields here: {fields}",
                                      {"found": _show(data), "fields": ", ".join(fields)})
        for key in data:
            if key not in fields:
                raise PydanticCustomError("section", "unknown field {name}; {mend}",
                                          {"name": shown(key), "mend": suggest(key, fields), "field": key})
            if data[key] is None:
                mend = "write what it is" + ("" if fields[key].is_required() else ", or leave it out")
                raise PydanticCustomError("section", "{name} has nothing behind it; {mend}",
                                          {"name": repr(key), "mend": mend, "field": key})
        return data


def _name(text: str) -> str:
    # What a host name may be (RFC 1123, section 2.1): such names serve for containers, namespaces and files too.
    if not (text.isascii() and text.replace("-", "").isalnum() and text[0] != "-" != text[-1] and len(text) <= 63):
        raise ValueError(f"{shown(text)} is no name; use up to 63 letters, digits and inner hyphens")
    return text


Name = Annotated[str, AfterValidator(_name)]

# What a document is made of. YAML has more (sets, binary data, tags of one's own), which nothing here means.
_TAGS = {yaml.SequenceNode: ("seq",), yaml.MappingNode: ("map",),
         yaml.ScalarNode: ("str", "int", "float", "bool", "null", "timestamp")}

S = TypeVar("S", bound=Section)


class Document(Generic[S]):
    """A file that was read and checked: its `text`, and its `content` as an instance of the model.

    `refusal` is the class of the errors that :meth:`error` makes, and that reading raises. With `text` that is taken
    for the content of the file, which need not be there.
    """

    def __init__(self, file: Path | str, model: type[S], refusal: type[DocumentError],
                 text: str | None = None) -> None:
        self.file = Path(file)
        self.refusal = refusal
        try:
            self.text = self.file.read_bytes().decode("utf-8") if text is None else text
        except UnicodeDecodeError as error:
            raise self.error_at(error.object.count(b"\n", 0, error.start) + 1,
                                f"byte 0x{error.object[error.start]:02x} is no UTF-8; save the file as UTF-8 text"
                                ) from None
        except OSError as error:
            raise refusal(f"{file}: {error.strerror}; give a YAML file that can be read") from None
        self._lines: dict[Location, int] = {}
        self._merged: set[yaml.Node] = set()
        data = self._read()
        try:
            self.content = model.model_validate(data)
        except ValidationError as error:
            # The first in the file: later ones are often its consequences.
            raise min((self._refused(details) for details in error.errors()), key=lambda found: found[0])[1] from None

    def line(self, *location: str | int) -> int:
        """Line of that location, or of the innermost enclosing one that the file has."""
        while location not in self._lines:
            location = location[:-1]
        return self._lines[location]

    def error(self, *location: str | int, message: str) -> DocumentError:
        """Make the error to raise about that location."""
        return self.error_at(self.line(*location), message)

    def error_at(self, line: int, message: str) -> DocumentError:
        """Make the error to raise about that line."""
        return self.refusal(f"{self.file}:{line}: {message}")

    def _read(self) -> Any:
        for number, line in enumerate(self.text.splitlines(), 1):
            if "\t" in line[:len(line) - len(line.lstrip())]:
                raise self.error_at(number, "a tab in the indentation; YAML indents with spaces: replace it by spaces")
        try:
            loader = yaml.SafeLoader(self.text)
            root = loader.get_single_node()
            if root is None:
                raise self.error_at(1, "the file is empty; write at least the fields that are required")
            return self._plain(loader, root, (), ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = ", ".join(part for part in (error.context, error.problem) if part)
            raise self.error_at(mark.line + 1 if mark else 1,
                                f"not YAML: {problem}; check indentation, brackets, quotes and colons here and just "
                                "above") from None
        except yaml.reader.ReaderError as error:
            number = self.text.count("\n", 0, error.position) + 1
            raise self.error_at(number, f"not YAML: the character {chr(error.character)!r} is not allowed; "
                                        "remove it") from None
        except RecursionError:
            raise self.error_at(1, "lists or mappings are nested too deeply; flatten them") from None

    def _plain(self, loader: yaml.SafeLoader, node: yaml.Node, at: Location, above: tuple[yaml.Node, ...]) -> Any:
        """Return the node as plain data, noting the line of everything in it."""
        self._lines.setdefault(at, node.start_mark.line + 1)
        if node in above:
            raise self.error_at(node.start_mark.line + 1, "an anchor that contains itself; remove the alias inside it")
        self._check_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, item, (*at, index), (*above, node)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(loader, node)
        if node not in self._merged:
            self._merge(loader, node)
        data = {}
        for key_node, value_node in node.value:
            key = self._scalar(loader, key_node)
            self._lines[*at, key] = key_node.start_mark.line + 1
            data[key] = self._plain(loader, value_node, (*at, key), (*above, node))
        return data

    def _check_tag(self, node: yaml.Node) -> None:
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS[type(node)]:
            raise self.error_at(node.start_mark.line + 1, f"the tag {node.tag} means nothing here; remove it")

    def _scalar(self, loader: yaml.SafeLoader, node: yaml.Node) -> Any:
        self._check_tag(node)
        try:
            return loader.construct_object(node)
        except ValueError as error:  # what looks like a date or a number to YAML, and is none: 2026-13-01
            why = str(error).partition(";")[0]  # behind it Python tells its programmers how to have longer integers
            raise self.error_at(node.start_mark.line + 1, f"{shown(node.value)} cannot be read ({why}); put quotes "
                                                          "around it if it is meant as a word") from None

    def _merge(self, loader: yaml.SafeLoader, node: yaml.MappingNode) -> None:
        """Refuse keys that are given twice, then put in what a merge key (<<) brings; an aliased node comes once."""
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error_at(line, "a key that is a list or a mapping; use a word or a number")
            key = "<<" if key_node.tag == "tag:yaml.org,2002:merge" else self._scalar(loader, key_node)
            if key in seen:
                raise self.error_at(line, f"{shown(key)} is given twice, first in line {seen[key]}; keep one of the "
                                          "two")
            seen[key] = line
        # The merged fields come before the mapping's own, which therefore win.
        loader.flatten_mapping(node)
        self._merged.add(node)

    def _refused(self, details: ErrorDetails) -> tuple[int, DocumentError]:
        """Line and error of one of pydantic's findings."""
        location = details["loc"]
        context = details.get("ctx", {})
        if "field" in context:
            location = (*location, context["field"])
        name = next((f"{part}: " for part in reversed(location) if isinstance(part, str)), "")
        if location and location[-1] == "[key]":
            name = ""  # it is the name itself that is wrong
        match details["type"]:
            case "missing":
                message = f"{location[-1]!r} is missing; add it"
            case "value_error":
                message = f"{name}{context['error']}"
            case "section":
                message = details["msg"] if "field" in context else f"{name}{details['msg']}"
            case "string_type":
                message = f"{name}{_show(details['input'])} is not text; put quotes around it if it is meant as a word"
            case "tuple_type":
                message = f"{name}{_show(details['input'])} is no list; write one, such as [a, b]"
            case "dict_type":
                message = f"{name}{_show(details['input'])} is no mapping; write name: value under it"
            case "too_short":
                message = f"{name}nothing is listed; write at least one"
            case _:
                # pydantic says what it wants: "Input should be greater than or equal to 1".
                message = f"{name}{_show(details['input'])} is refused; {details['msg'].replace('Input', 'it', 1)}"
        line = self.line(*location)
        return line, self.error_at(line, message)


def suggest(word: object, known: Iterable[str]) -> str:
    """Say which of the known words was likely meant, and which there are: the mend of an error."""
    words = list(known)
    close = difflib.get_close_matches(str(word), words, n=1)
    return (f"did you mean {close[0]!r}? Use" if close else "use") + f" one of: {', '.join(words)}"


def _show(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else "a mapping" if isinstance(value, dict) else shown(value)
