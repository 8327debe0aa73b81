#!/usr/bin/python3
"""The schema as another implementation sees it.

test_proto_schema.py PROTOC ROOT CODEC_TEST DESCRIPTORS WORK

1. protoc's own Python code compiles from ROOT (the folder proto/) and imports.
2. Every message that CODEC_TEST --dump writes is parsed and serialized again to the same bytes.
3. Rules that protoc does not check: each enum begins with *_UNSPECIFIED = 0; bytes of blocks stand in no oneof, and `data`
   has the highest number; no .options file asks for malloc'd fields; the enums of proto/msg_*.h are those of the schema.
4. DESCRIPTORS is a set that holds every file after its imports.
"""
import glob
import importlib
import os
import re
import subprocess
import sys

try:
    from google.protobuf import descriptor_pb2, descriptor_pool
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

SERVICES = ("common", "model", "parameter_service", "scale_service", "admin_service", "peer_service")
REAL_FIELDS_WITH_BYTES = ("LoadRequest", "PullResponse", "PushRequest")


def compile_python(protoc, root, work):
    files = [f"ampd/v1/{name}.proto" for name in SERVICES]
    subprocess.run([protoc, f"-I{root}", f"--python_out={work}", *files], check=True)
    sys.path.insert(0, work)
    return [importlib.import_module(f"ampd.v1.{name}_pb2") for name in SERVICES]


def find_message(modules, name):
    for module in modules:
        if name in module.DESCRIPTOR.message_types_by_name:
            return getattr(module, name)
    raise LookupError(name)


def check_bytes(modules, codec_test, work):
    for path in glob.glob(os.path.join(work, "*.bin")):  # of a build before, whose schema was another
        os.unlink(path)
    subprocess.run([codec_test, "--dump", work], check=True)
    dumped = sorted(glob.glob(os.path.join(work, "*.bin")))
    assert len(dumped) > 100, dumped
    for path in dumped:
        with open(path, "rb") as file:
            data = file.read()
        message = find_message(modules, os.path.basename(path).split(".")[0])()
        message.ParseFromString(data)
        again = message.SerializeToString(deterministic=True)
        assert again == data, f"{path}: Python writes {len(again)} bytes, not the same {len(data)}"
    return len(dumped)


def check_rules(modules, root):
    for module in modules:
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            first = enum.values[0]
            assert first.number == 0 and first.name.endswith("_UNSPECIFIED"), enum.full_name
        for message in module.DESCRIPTOR.message_types_by_name.values():
            real = [o for o in message.oneofs if not (len(o.fields) == 1 and o.name.startswith("_"))]
            assert not real, f"{message.full_name} has a oneof"
    for name in REAL_FIELDS_WITH_BYTES:
        fields = find_message(modules, name).DESCRIPTOR.fields
        assert max(fields, key=lambda field: field.number).name == "data", name
    for path in glob.glob(os.path.join(root, "**", "*.options"), recursive=True):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert not re.search(r"FT_POINTER|\bsubmsg_callback\b|PB_FIELD_32BIT", text), path


def check_enums(modules, root):
    schema = {}
    for module in modules:
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            schema[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).lower()] = {v.name: v.number for v in enum.values}
    seen = 0
    for path in glob.glob(os.path.join(root, "msg_*.h")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for name, body in re.findall(r"^enum ampd_msg_(\w+) \{(.*?)^\};", text, re.M | re.S):
            values = {n: int(v) for n, v in re.findall(r"AMPD_MSG_(\w+) =\s+(\d+),", body)}
            assert values == schema[name], f"enum ampd_msg_{name} in {path}"
            seen += 1
    assert seen > 10


def check_descriptors(path):
    files = descriptor_pb2.FileDescriptorSet()
    with open(path, "rb") as file:
        files.ParseFromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    for service in ("ParameterService", "ScaleService", "AdminService", "PeerService"):
        assert pool.FindServiceByName(f"ampd.v1.{service}").methods
    known = set()
    for file in files.file:
        assert set(file.dependency) <= known, file.name
        known.add(file.name)


def main():
    protoc, root, codec_test, descriptors, work = sys.argv[1:]
    os.makedirs(work, exist_ok=True)
    modules = compile_python(protoc, root, work)
    messages = check_bytes(modules, codec_test, work)
    check_rules(modules, root)
    check_enums(modules, root)
    check_descriptors(descriptors)
    print(f"{messages} messages read and written alike")


main()
