# The programs on grpc++, where it is installed. C++ is for these alone: their flags are not those of the project.
include(CheckLanguage)
check_language(CXX)
include(${PROJECT_SOURCE_DIR}/cmake/grpcpp.cmake)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin)
if(NOT CMAKE_CXX_COMPILER OR NOT GRPCPP_FOUND OR NOT GRPC_CPP_PLUGIN)
  foreach(name client_to_grpcpp grpcpp_to_ampd_plaintext grpcpp_to_ampd_tls)
    foreign_test(${name} sh -c "echo 'SKIPPED: ${name} needs grpc++ (packages libgrpc++-dev protobuf-compiler-grpc)'; exit 77")
  endforeach()
  return()
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(made ${PROJECT_BINARY_DIR}/gen/tests/conformance/grpcpp)
file(MAKE_DIRECTORY ${made})

# grpcpp_program(NAME FOLDER MESSAGES... SERVICES...): protos of the folder; a service's proto gives both kinds of code.
function(grpcpp_program name folder)
  cmake_parse_arguments(A "" "" "MESSAGES;SERVICES" ${ARGN})
  set(sources)
  foreach(proto ${A_MESSAGES} ${A_SERVICES})
    set(outputs ${made}/${proto}.pb.cc)
    set(options)
    if(proto IN_LIST A_SERVICES)
      list(APPEND outputs ${made}/${proto}.grpc.pb.cc)
      set(options --grpc_out=${made} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN})
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND ${PROTOC} -I${folder} -I${PROTOBUF_INCLUDE} --cpp_out=lite:${made} ${options} ${proto}.proto
      DEPENDS ${folder}/${proto}.proto COMMENT "C++ of ${proto}.proto" VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()
  add_executable(${name} ${here}/peers/${name}.cc ${sources})
  # Made code is large, and how fast these programs are is of no interest.
  target_compile_options(${name} PRIVATE -O0 -g0 -w ${GRPCPP_FLAGS})
  # As one file: the headers take longer than what is in it. With descriptors (without lite) each .pb.cc would have the same names.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_include_directories(${name} PRIVATE ${made})
  target_link_libraries(${name} PRIVATE ${GRPCPP_LIBRARIES})
endfunction()

grpcpp_program(grpcpp_server ${here} SERVICES echo)
grpcpp_program(grpcpp_ampd ${root} MESSAGES ampd/v1/common ampd/v1/model
  SERVICES ampd/v1/parameter_service ampd/v1/scale_service)
foreign_test(client_to_grpcpp $<TARGET_FILE:test_foreign_server> $<TARGET_FILE:grpcpp_server>)
foreach(kind plaintext tls)
  foreign_test(grpcpp_to_ampd_${kind}
    sh ${here}/grpcpp_ampd.sh $<TARGET_FILE:ampd> $<TARGET_FILE:grpcpp_ampd> ${kind})
endforeach()
