# The numerics, installed and used by a program outside the tree.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
add_test(NAME test_amp_install
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install_amp.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER}
          "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${build_type}}")
set_tests_properties(test_amp_install PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 120)
