ampd_source_test(test_wrong_options unit ${CMAKE_CURRENT_LIST_DIR}/wrong_options.sh ${PROJECT_SOURCE_DIR})
ampd_source_test(test_build_only unit ${CMAKE_CURRENT_LIST_DIR}/build_only.sh ${PROJECT_SOURCE_DIR})
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME test_path_with_space COMMAND ${CMAKE_CURRENT_LIST_DIR}/path_with_space.sh ${PROJECT_SOURCE_DIR})
  set_tests_properties(test_path_with_space PROPERTIES LABELS unit TIMEOUT 600)
endif()
# What the release build promises of its programs. Debian's binutils come with every compiler.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND TARGET ampd AND TARGET ampctl AND TARGET ampclient)
  add_test(NAME test_hardening COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_hardening.py
           $<TARGET_FILE:ampd> $<TARGET_FILE:ampctl> $<TARGET_FILE:ampclient>)
  set_tests_properties(test_hardening PROPERTIES LABELS unit TIMEOUT 300)
endif()
