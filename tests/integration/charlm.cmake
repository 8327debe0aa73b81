# The language model of examples/charlm with real processes: two runs of 60 steps.
add_library(stopping_pull SHARED stopping_pull.c)
target_include_directories(stopping_pull PRIVATE ${PROJECT_SOURCE_DIR})
add_test(NAME test_charlm
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/test_charlm.py ${PROJECT_BINARY_DIR}/bin)
set_tests_properties(test_charlm PROPERTIES LABELS integration TIMEOUT 900)
