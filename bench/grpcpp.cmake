# The peer on grpc++, where it is installed; the rows beside it are skipped where it is not.
include(CheckLanguage)
check_language(CXX)
include(${PROJECT_SOURCE_DIR}/cmake/grpcpp.cmake)
if(NOT CMAKE_CXX_COMPILER OR NOT GRPCPP_FOUND)
  add_custom_target(grpcpp_peer COMMENT "grpcpp_peer: grpc++ is not here (package libgrpc++-dev)")
  return()
endif()
enable_language(CXX)
# Built by who runs it (run.sh): it has nothing of ours in it, and takes as long as fifty files of C.
add_executable(grpcpp_peer EXCLUDE_FROM_ALL grpcpp_peer.cc)
target_compile_features(grpcpp_peer PRIVATE cxx_std_17)
# -O2 or better, as its library: this one is measured.
target_compile_options(grpcpp_peer PRIVATE -O3 -Wall ${GRPCPP_FLAGS})
target_link_libraries(grpcpp_peer PRIVATE ${GRPCPP_LIBRARIES})
set_target_properties(grpcpp_peer PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
