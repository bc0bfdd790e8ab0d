"""Packages whose manifest was changed by hand."""

import json
import zlib

from tilewright.program import package as module


def rewrite(path, change):
    """Change the manifest of a package and make its checksum right again."""
    data = path.read_bytes()
    magic, version, _, offset, length = module._HEAD.unpack_from(data)
    manifest = json.loads(data[offset : offset + length])
    change(manifest)
    text = json.dumps(manifest).encode()
    head = module._HEAD.pack(magic, version, zlib.crc32(text), offset, len(text))
    path.write_bytes(head + data[module._HEAD.size : offset] + text)
