# The main job with real processes: short runs here, the large counts by ./test.sh --long digits.
add_test(NAME test_digits
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/test_digits.py ${PROJECT_BINARY_DIR}/bin)
# A dozen runs: 15 s in all, and with a sanitizer, which slows their arithmetic down tenfold, four minutes of CPU time.
set_tests_properties(test_digits PROPERTIES LABELS integration SKIP_RETURN_CODE 77
  TIMEOUT $<IF:$<CONFIG:Release>,900,3600>)
