# docs/specs.md names functions and tests, and every page names files: they have to be there.
add_test(NAME test_specs_table
  COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_specs_table.py ${PROJECT_SOURCE_DIR})
set_tests_properties(test_specs_table PROPERTIES LABELS unit TIMEOUT 300)
