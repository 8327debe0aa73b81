# The numerics, installed and used by a program outside the tree.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
add_test(NAME test_amp_install
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install_amp.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER}
          "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${build_type}}")
set_tests_properties(test_amp_install PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)

# Tensors of NumPy and PyTorch. Where the program is instrumented, Python could not load the library.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_library(dlpack_bridge SHARED dlpack_bridge.c)
  target_link_libraries(dlpack_bridge PRIVATE amp ampd_flags)
  add_test(NAME test_amp_dlpack_foreign
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/test_amp_dlpack.py $<TARGET_FILE:dlpack_bridge>)
  set_tests_properties(test_amp_dlpack_foreign PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
endif()
