# The codec of ampd.v1 and the block reader. proto_ampd: the tests compare with nanopb's own structs.
add_library(test_proto_messages STATIC proto_messages.c)
target_link_libraries(test_proto_messages PUBLIC ampd_proto proto_ampd PRIVATE ampd_flags)
ampd_test(test_proto_codec SUITE unit SOURCES test_proto_codec.c LINK test_proto_messages)
ampd_test(test_proto_hostile SUITE unit SOURCES test_proto_hostile.c LINK test_proto_messages)
ampd_test(test_proto_memory SUITE unit SOURCES test_proto_memory.c LINK test_proto_messages)
target_link_options(test_proto_memory PRIVATE -Wl,--wrap=malloc -Wl,--wrap=realloc)
ampd_test(test_proto_numbers SUITE unit SOURCES test_proto_numbers.c LINK ampd_proto)
ampd_test(test_proto_block SUITE unit SOURCES test_proto_block.c LINK test_proto_messages)

# The same messages by protoc's Python code, and rules of the schema. Debian's python3, which has protobuf.
add_test(NAME test_proto_schema
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_proto_schema.py ${PROTOC} ${PROJECT_SOURCE_DIR}/proto
          $<TARGET_FILE:test_proto_codec> ${PROJECT_BINARY_DIR}/gen/ampd/descriptors.bin
          ${PROJECT_BINARY_DIR}/gen/proto_schema)
set_tests_properties(test_proto_schema PROPERTIES LABELS unit SKIP_RETURN_CODE 77 TIMEOUT 300)
