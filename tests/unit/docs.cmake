add_test(NAME test_docs_names COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_docs_names.py ${PROJECT_SOURCE_DIR})
set_tests_properties(test_docs_names PROPERTIES LABELS unit TIMEOUT 300)
add_test(NAME test_docs_tables COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_docs_tables.py ${PROJECT_SOURCE_DIR})
set_tests_properties(test_docs_tables PROPERTIES LABELS unit TIMEOUT 300)
