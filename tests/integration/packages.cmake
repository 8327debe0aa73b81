# What deploy/ makes packages of, without making one.
if(TARGET ampd AND TARGET ampctl)
  add_test(NAME test_sbom COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_sbom.py ${PROJECT_BINARY_DIR})
  set_tests_properties(test_sbom PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 600)
endif()
