# docs/specs.md names functions and tests, and every page names files: they have to be there.
ampd_source_test(test_specs_table unit /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_specs_table.py ${PROJECT_SOURCE_DIR})
