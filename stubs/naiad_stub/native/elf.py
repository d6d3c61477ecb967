"""Writes a small ELF shared object, and reads what another one needs. No compiler or linker takes part.

The written object exports functions that a native backend links to. Each exported function is one jump through a table
in the object's data. The guest fills the table with the addresses of its callbacks after loading the object:

    exported function i:   jump to table[i]
    default of entry i:    load i into the first argument, jump to table[count]

So an entry that was never filled calls the fallback in the table's last entry, with the function's number: that one can
return an error that names the function. Supported: 64-bit little-endian ELF for x86-64 and aarch64, the machines whose
wheels of Python exist.

The sections that a linker would write are missing: loaders use program headers and the dynamic section alone.
"""

from __future__ import annotations

import platform
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

TABLE_SYMBOL = "naiad_function_table"
"""Exported name of the table: one pointer for each function, then the fallback."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<QQ")
IDENTITY = b"\x7fELF\x02\x01"
"""The first bytes of a file that this module reads: 64 bits, little-endian."""
MALFORMED = (struct.error, ValueError, IndexError, OverflowError)
"""What reading a malformed file raises."""
_SHARED_OBJECT = 3
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB = 1, 4, 5, 6
_DT_RELA, _DT_RELASZ, _DT_RELAENT, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 7, 8, 9, 10, 11, 14
_DT_RPATH, _DT_RUNPATH, _DT_GNU_HASH = 15, 29, 0x6FFFFEF5
_GLOBAL_OBJECT, _GLOBAL_FUNCTION = 0x11, 0x12
_STUB_BYTES = 32  # of one function: 16 for the jump through the table, 16 for its default
_BUCKETS = 127
_PROGRAMS = 4
_DYNAMIC_ENTRIES = 10


class ElfError(Exception):
    """A file is not an ELF object that this module supports, or it is malformed."""


class _Machine(NamedTuple):
    """What depends on the processor.

    Attributes:
        number: Its number in the ELF header.
        relative: The type of a relocation that adds the address at which the object was loaded.
        page: The largest page size of its kernels: segments of different protection may not share a page.
        code: Makes the 32 bytes of one function from its address, its table entry, its number and the last entry.
    """

    number: int
    relative: int
    page: int
    code: Callable[[int, int, int, int], bytes]


def _x86_64(at: int, entry: int, index: int, fallback: int) -> bytes:
    # endbr64; jmp *entry(%rip)
    jump = b"\xf3\x0f\x1e\xfa\xff\x25" + struct.pack("<i", entry - (at + 10))
    # endbr64; mov $index, %edi; jmp *fallback(%rip)
    default = b"\xf3\x0f\x1e\xfa\xbf" + struct.pack("<I", index) + b"\xff\x25"
    return jump.ljust(16, b"\xcc") + default[:11] + struct.pack("<i", fallback - (at + 16 + 15)) + b"\xcc"


def _aarch64(at: int, entry: int, index: int, fallback: int) -> bytes:
    # bti c is not needed: the object does not ask for branch protection. movz w0, #index; then as above.
    jump = _aarch64_jump(at, entry).ljust(16, b"\0")
    return jump + struct.pack("<I", 0x52800000 | index << 5) + _aarch64_jump(at + 20, fallback)


def _aarch64_jump(at: int, entry: int) -> bytes:
    """The code `adrp x16, entry; ldr x16, [x16, :lo12:entry]; br x16`. Any call may change x16."""
    pages = (entry >> 12) - (at >> 12)
    adrp = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    ldr = 0xF9400210 | (entry & 0xFFF) >> 3 << 10
    return struct.pack("<III", adrp, ldr, 0xD61F0200)


_MACHINES: Dict[str, _Machine] = {
    "x86_64": _Machine(62, 8, 0x1000, _x86_64),
    "aarch64": _Machine(183, 1027, 0x10000, _aarch64),
}


class _Layout(NamedTuple):
    """Where the parts of a written object begin; addresses and offsets in the file are equal.

    The parts before `table` are read-only and executable, the others writable and on separate pages.

    Attributes:
        functions: Number of functions.
        symbol: The symbols: an empty one, the functions, the table.
        hash: The hash table of the symbols.
        string: The names.
        relocation: One for each entry of the table: its default.
        code: The code of the functions.
        code_end: The end of the code.
        table: The table.
        dynamic: The dynamic section.
        end: The end of the file.
    """

    functions: int
    symbol: int
    hash: int
    string: int
    relocation: int
    code: int
    code_end: int
    table: int
    dynamic: int
    end: int


def write_library(names: Sequence[str], soname: str, machine: Optional[str] = None) -> bytes:
    """A shared object that exports *names* as functions, and their table as TABLE_SYMBOL.

    Args:
        names: Names of the functions; function i jumps through entry i.
        soname: The name under which other objects need it.
        machine: As `platform.machine` reports it; by default this machine.

    Raises:
        ElfError: If no object can be written for the machine.
    """
    machine = machine or platform.machine()
    kind = _MACHINES.get(machine)
    if kind is None:
        raise ElfError(
            f"native backends run on {' and '.join(sorted(_MACHINES))}, and this machine's processor is '{machine}'"
        )
    symbols = [*names, TABLE_SYMBOL]
    strings, offsets = _string_table([*symbols, soname])
    at = _lay_out(len(names), len(strings), kind.page)
    data = bytearray(at.end)
    _write_head(data, at, kind)
    _write_symbols(data, at, offsets)
    _write(data, at.hash, _hash_table(symbols))
    _write(data, at.string, strings)
    _write_functions(data, at, kind)
    _write(data, at.dynamic, _dynamic_section(at, len(strings), offsets[-1]))
    return bytes(data)


def _lay_out(count: int, string_bytes: int, page: int) -> _Layout:
    symbol = _align(_HEADER.size + _PROGRAM.size * _PROGRAMS, 16)
    hash_ = symbol + _SYMBOL.size * (count + 2)
    string = hash_ + 4 * (2 + _BUCKETS + count + 2)
    relocation = _align(string + string_bytes, 16)
    code = _align(relocation + _RELOCATION.size * count, 32)
    code_end = code + _STUB_BYTES * count
    table = _align(code_end, page)
    dynamic = table + 8 * (count + 1)
    end = dynamic + _DYNAMIC.size * _DYNAMIC_ENTRIES
    return _Layout(count, symbol, hash_, string, relocation, code, code_end, table, dynamic, end)


def _write(data: bytearray, at: int, part: bytes) -> None:
    data[at : at + len(part)] = part


def _write_head(data: bytearray, at: _Layout, kind: _Machine) -> None:
    """Write the ELF header and the program headers: what the loader maps, and with which protection."""
    _HEADER.pack_into(
        data, 0, IDENTITY + b"\x01", _SHARED_OBJECT, kind.number, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _PROGRAM.size,
        _PROGRAMS, 0, 0, 0,
    )  # fmt: skip
    programs = (
        (_PT_LOAD, _READ_EXECUTE, 0, at.code_end, kind.page),
        (_PT_LOAD, _READ_WRITE, at.table, at.end - at.table, kind.page),
        (_PT_DYNAMIC, _READ_WRITE, at.dynamic, at.end - at.dynamic, 8),
        (_PT_GNU_STACK, _READ_WRITE, 0, 0, 16),  # without it, loaders make the stack executable
    )
    for number, (type_, flags, start, size, alignment) in enumerate(programs):
        position = _HEADER.size + _PROGRAM.size * number
        _PROGRAM.pack_into(data, position, type_, flags, start, start, start, size, size, alignment)


def _write_symbols(data: bytearray, at: _Layout, names: Sequence[int]) -> None:
    """Write the symbols of the functions and of the table, whose names begin at *names* in the string table."""
    for number in range(at.functions):
        position, address = at.symbol + _SYMBOL.size * (number + 1), at.code + _STUB_BYTES * number
        _SYMBOL.pack_into(data, position, names[number], _GLOBAL_FUNCTION, 0, 1, address, 16)
    position = at.symbol + _SYMBOL.size * (at.functions + 1)
    _SYMBOL.pack_into(data, position, names[at.functions], _GLOBAL_OBJECT, 0, 2, at.table, 8 * (at.functions + 1))


def _write_functions(data: bytearray, at: _Layout, kind: _Machine) -> None:
    """Write the code of each function, and the relocation that makes its default the value of its entry."""
    fallback = at.table + 8 * at.functions
    for number in range(at.functions):
        code, entry = at.code + _STUB_BYTES * number, at.table + 8 * number
        _write(data, code, kind.code(code, entry, number, fallback))
        _RELOCATION.pack_into(data, at.relocation + _RELOCATION.size * number, entry, kind.relative, code + 16)


def _dynamic_section(at: _Layout, string_bytes: int, soname: int) -> bytes:
    entries = (
        (_DT_SONAME, soname),
        (_DT_HASH, at.hash),
        (_DT_STRTAB, at.string),
        (_DT_SYMTAB, at.symbol),
        (_DT_STRSZ, string_bytes),
        (_DT_SYMENT, _SYMBOL.size),
        (_DT_RELA, at.relocation),
        (_DT_RELASZ, _RELOCATION.size * at.functions),
        (_DT_RELAENT, _RELOCATION.size),
        (0, 0),
    )
    return b"".join(_DYNAMIC.pack(*entry) for entry in entries)


def _align(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


def _string_table(names: Sequence[str]) -> Tuple[bytes, List[int]]:
    strings = bytearray(1)
    offsets = []
    for name in names:
        offsets.append(len(strings))
        strings += name.encode() + b"\0"
    return bytes(strings), offsets


def _hash_table(symbols: Sequence[str]) -> bytes:
    """The System V hash table: the number of buckets and of symbols, the chains' heads, and the chains."""
    heads = [0] * _BUCKETS
    chains = [0] * (len(symbols) + 1)
    for number, name in enumerate(symbols, 1):
        bucket = _hash(name.encode()) % _BUCKETS
        chains[number], heads[bucket] = heads[bucket], number
    return struct.pack(f"<{2 + _BUCKETS + len(chains)}I", _BUCKETS, len(chains), *heads, *chains)


def _hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


# -- reading ----------------------------------------------------------------------------------------------------------


class SharedObject(NamedTuple):
    """What a shared object says about itself.

    Attributes:
        machine: The processor, as `platform.machine` names it; its ELF number if this module does not know it.
        needed: Names of the libraries it needs, in order.
        search_path: Its RUNPATH, or else its RPATH, as written in the file; empty without one.
        imports: Names of the symbols that it expects other libraries to define.
        exports: Names of the symbols that it defines.
    """

    machine: str
    needed: Tuple[str, ...]
    search_path: str
    imports: frozenset[str]
    exports: frozenset[str]


class ElfFile:
    """The dynamic section of an ELF file: the one reader of the guest and the host.

    Attributes:
        data: The bytes of the file.
        machine: The processor, as `platform.machine` names it; its ELF number if this module does not know it.
        values: The first value of each tag, which is the one that counts.
        needed: Names of the libraries it needs, in order.
        search_path: Its RUNPATH, or else its RPATH, which the loader ignores beside a RUNPATH (ld.so(8)).
        search_path_offset: Where the search path is in the file; 0 without one.
    """

    def __init__(self, data: bytes) -> None:
        """Read the dynamic section in *data*, the bytes of a whole file.

        Raises:
            ElfError: If it is not a 64-bit little-endian ELF file with a dynamic section, or is malformed.
        """
        if data[:6] != IDENTITY:
            raise ElfError("not a 64-bit little-endian ELF file")
        self.data = data
        try:
            self._read()
        except MALFORMED as error:
            raise ElfError(f"malformed ELF file: {error}") from error

    def _read(self) -> None:
        head = _HEADER.unpack_from(self.data)
        number, programs_at, program_size, program_count = head[2], head[5], head[9], head[10]
        self.machine = next((name for name, kind in _MACHINES.items() if kind.number == number), str(number))
        self._loads: List[Tuple[int, int, int]] = []
        dynamic: Optional[Tuple[int, int]] = None
        for index in range(program_count):
            type_, _, offset, address, _, size, _, _ = _PROGRAM.unpack_from(
                self.data, programs_at + index * program_size
            )
            if type_ == _PT_LOAD:
                self._loads.append((address, offset, size))
            elif type_ == _PT_DYNAMIC:
                dynamic = (offset, size)
        if dynamic is None:
            raise ElfError("no dynamic section: not a shared object")
        entries: List[Tuple[int, int]] = []
        for position in range(dynamic[0], sum(dynamic) - _DYNAMIC.size + 1, _DYNAMIC.size):
            tag, value = _DYNAMIC.unpack_from(self.data, position)
            if not tag:
                break
            entries.append((tag, value))
        self.values = dict(reversed(entries))
        self._strings = self.offset_of(self.values[_DT_STRTAB]) if _DT_STRTAB in self.values else 0
        self.needed = tuple(self.string(value) for tag, value in entries if tag == _DT_NEEDED)
        path = self.values.get(_DT_RUNPATH, self.values.get(_DT_RPATH))
        self.search_path = "" if path is None else self.string(path)
        self.search_path_offset = 0 if path is None else self._strings + path

    def offset_of(self, address: int) -> int:
        """Where the file has what is loaded at an address.

        Raises:
            ValueError: If it has nothing for that address.
        """
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return offset + address - start
        raise ValueError(f"address {address:#x} is outside the file")

    def string(self, at: int) -> str:
        """The string at a position of the string table.

        Raises:
            ValueError: If it has no end.
        """
        start = self._strings + at
        return self.data[start : self.data.index(b"\0", start)].decode("utf-8", "surrogateescape")


def read_shared_object(data: bytes) -> SharedObject:
    """What the shared object in *data*, the bytes of its whole file, says about itself.

    Raises:
        ElfError: If it is not a 64-bit little-endian ELF object with a dynamic section, or is malformed.
    """
    file = ElfFile(data)
    imports: Set[str] = set()
    exports: Set[str] = set()
    try:
        if _DT_SYMTAB in file.values:
            table = file.offset_of(file.values[_DT_SYMTAB])
            for index in range(1, _symbol_count(file)):
                name, info, _, section, _, _ = _SYMBOL.unpack_from(data, table + index * _SYMBOL.size)
                if name and info >> 4:  # local symbols are of no use to other objects
                    (exports if section else imports).add(file.string(name))
    except MALFORMED as error:
        raise ElfError(f"malformed ELF file: {error}") from error
    return SharedObject(file.machine, file.needed, file.search_path, frozenset(imports), frozenset(exports))


def _symbol_count(file: ElfFile) -> int:
    """The number of dynamic symbols, which only the hash tables tell."""
    data, values, offset_of = file.data, file.values, file.offset_of
    if _DT_HASH in values:
        count: int = struct.unpack_from("<II", data, offset_of(values[_DT_HASH]))[1]
        return count
    if _DT_GNU_HASH not in values:
        return 0
    at = offset_of(values[_DT_GNU_HASH])
    buckets, first, bloom, _ = struct.unpack_from("<IIII", data, at)
    at += 16 + 8 * bloom
    last = int(max(struct.unpack_from(f"<{buckets}I", data, at), default=0))
    if last < first:
        return int(first)
    at += 4 * buckets
    # A chain ends with an odd entry: the last chain ends with the last symbol.
    while not struct.unpack_from("<I", data, at + 4 * (last - first))[0] & 1:
        last += 1
    return last + 1
