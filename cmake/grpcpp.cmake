# grpc++ and protobuf for C++, where they are installed: sets GRPCPP_FOUND, GRPCPP_FLAGS, GRPCPP_LIBRARIES. pkg-config is run once:
# pkg_check_modules runs it twenty times, and each run reads the 150 files of Abseil, which takes a quarter of a minute in all.
if(NOT DEFINED CACHE{GRPCPP_ANSWER})
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --cflags --libs grpc++ protobuf
                  OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(GRPCPP_ANSWER "${answer}" CACHE INTERNAL "What pkg-config answered for grpc++; empty: not installed")
endif()
separate_arguments(GRPCPP_FLAGS UNIX_COMMAND "${GRPCPP_ANSWER}")
set(GRPCPP_LIBRARIES ${GRPCPP_FLAGS})
list(FILTER GRPCPP_FLAGS EXCLUDE REGEX "^-[lL]")
list(FILTER GRPCPP_LIBRARIES INCLUDE REGEX "^-[lL]")
list(LENGTH GRPCPP_LIBRARIES GRPCPP_FOUND)
