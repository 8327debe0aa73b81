ampd_source_test(test_docs_names unit /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_docs_names.py ${PROJECT_SOURCE_DIR})
ampd_source_test(test_docs_tables unit /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_docs_tables.py ${PROJECT_SOURCE_DIR})
