add_test(NAME test_wrong_options COMMAND ${CMAKE_CURRENT_LIST_DIR}/wrong_options.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(test_wrong_options PROPERTIES LABELS unit TIMEOUT 300)
