# Manual pages and bash's completion of the programs: made at build time of what the programs say of themselves, so that they
# tell what --help tells. Without scdoc there are no manual pages.
find_program(SCDOC scdoc)
if(NOT SCDOC)
  message(STATUS "scdoc is missing (package scdoc): no manual pages are built")
endif()
set(pages_dir ${PROJECT_BINARY_DIR}/share)

# ampd_man(NAME SECTION [PROGRAM target]): a page of docs/man/NAME.SECTION.scd.in, with the program's usage in it.
function(ampd_man name section)
  cmake_parse_arguments(A "" "PROGRAM" "" ${ARGN})
  if(NOT SCDOC)
    return()
  endif()
  set(page ${pages_dir}/man/man${section}/${name}.${section})
  set(in ${PROJECT_SOURCE_DIR}/docs/man/${name}.${section}.scd.in)
  set(make ${PROJECT_SOURCE_DIR}/cmake/man_page.cmake)
  set(program)
  if(A_PROGRAM)
    set(program -DPROGRAM=$<TARGET_FILE:${A_PROGRAM}>)
  endif()
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DIN=${in} -DTEXT=${PROJECT_BINARY_DIR}/gen/man/${name}.scd -DOUT=${page} -DSCDOC=${SCDOC} -DVERSION=${PROJECT_VERSION} ${program}
            "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}" -P ${make}
    DEPENDS ${in} ${make} ${A_PROGRAM} COMMENT "Manual page ${name}(${section})" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY AMPD_PAGES ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} OPTIONAL)
endfunction()

# ampd_completion(target): of a program that knows --usage-as=bash.
function(ampd_completion target)
  set(script ${pages_dir}/bash-completion/completions/${target})
  file(MAKE_DIRECTORY ${pages_dir}/bash-completion/completions)
  add_custom_command(OUTPUT ${script}
    COMMAND ${target} --usage-as=bash > ${script} DEPENDS ${target} COMMENT "Completion of ${target}" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY AMPD_PAGES ${script})
  install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
endfunction()

# A configuration file in which each option stands with its default, commented out.
function(ampd_example_conf)
  set(conf ${pages_dir}/doc/ampd/ampd.conf)
  file(MAKE_DIRECTORY ${pages_dir}/doc/ampd)
  add_custom_command(OUTPUT ${conf} COMMAND ampd --usage-as=conf > ${conf} DEPENDS ampd COMMENT "ampd.conf" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY AMPD_PAGES ${conf})
  install(FILES ${conf} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ampd OPTIONAL)
endfunction()

# What has been asked for, as a part of every build.
function(ampd_pages_target)
  get_property(pages GLOBAL PROPERTY AMPD_PAGES)
  add_custom_target(pages ALL DEPENDS ${pages})
endfunction()
