# Helpers for the folders: every target gets the same language, warnings and floating-point rules.

add_library(ampd_flags INTERFACE)
target_compile_options(ampd_flags INTERFACE
  -ffp-contract=off -fno-fast-math -fvisibility=hidden -fno-strict-aliasing
  -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wcast-qual -Wstrict-prototypes
  -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef -Wformat=2 -Wno-unused-parameter)
# The POSIX interfaces that -std=c17 hides; _GNU_SOURCE is asked for by the few files that need it.
target_compile_definitions(ampd_flags INTERFACE _POSIX_C_SOURCE=200809L)
target_include_directories(ampd_flags INTERFACE ${PROJECT_SOURCE_DIR})

# What the release build has against bytes of others that get further than they should: checked copies, guarded stacks and
# indirect jumps, tables that nobody writes after the start. Not beside sanitizers, which look for the same and see more without.
# (-U: some compilers have another number of their own. With checked copies the C library marks read and others as calls whose result
# must be used, and gcc does not take (void) for a use.)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES C)
  target_compile_options(ampd_flags INTERFACE
    -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -Wno-unused-result -fstack-protector-strong -fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    target_compile_options(ampd_flags INTERFACE -fcf-protection=full)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    target_compile_options(ampd_flags INTERFACE -mbranch-protection=standard)
  endif()
  target_link_options(ampd_flags INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()

# For amp and base, beside sanitizers: unsigned arithmetic wraps where AMP_WRAPS says so (base/wraps.h), and nowhere else.
option(AMPD_INTEGER "look for unsigned arithmetic that wraps, in amp and base (clang)" OFF)
add_library(ampd_integer_flags INTERFACE)
if(AMPD_INTEGER)
  target_compile_options(ampd_integer_flags INTERFACE -fsanitize=integer)
endif()

option(AMPD_FUZZ "make the fuzz targets with libFuzzer (clang)" OFF)

# Options for the files of tests, which take longer to compile than to run; they come after those of the build type. Tests of
# kernels, which compute, and of storage, which compare whole structures with their padding, do without.
set(AMPD_TEST_OPTIONS "" CACHE STRING "options of the compiler for the files of tests")
# It links in half the time of ld.bfd. Programs that people run are linked as the compiler does by default.
include(CheckLinkerFlag)
check_linker_flag(C -fuse-ld=gold AMPD_GOLD)

# ampd_library(NAME SOURCES a.c ... [LINK lib ...]): a static library of one folder.
function(ampd_library name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC ${A_LINK} PRIVATE ampd_flags)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  if(AMPD_FUZZ AND name MATCHES "^(ampd_server|ampd_config|ampctl_output|ampclient_io)$") # no fuzz target has them
    target_compile_options(${name} PRIVATE ${AMPD_TEST_OPTIONS})
  elseif(AMPD_FUZZ AND NOT name STREQUAL amp) # where libFuzzer sees what it reaches; kernels are slow with it, and no parsers
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# ampd_program(NAME SOURCES a.c ... [LINK lib ...]): a program that people run; all of them lie in <build>/bin.
function(ampd_program name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINK} ampd_flags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# ampd_test(NAME SUITE unit|kernels|sim|... SOURCES a.c ... [LINK lib ...]): a cmocka program, run by ctest
# under the label SUITE. A test that exits with 77 could not run, and has printed "SKIPPED: reason".
function(ampd_test name)
  cmake_parse_arguments(A "" "SUITE;TIMEOUT" "SOURCES;LINK;ARGS" ${ARGN})
  add_executable(${name} ${name}.c)
  target_link_libraries(${name} PRIVATE ${A_LINK} cmocka ampd_flags)
  if(AMPD_GOLD)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  set(options)
  if(NOT A_SUITE STREQUAL kernels AND NOT name MATCHES "^test_(storage|faults)_")
    set(options ${AMPD_TEST_OPTIONS})
  endif()
  target_compile_options(${name} PRIVATE ${options})
  # A source that several tests share is compiled once.
  list(REMOVE_ITEM A_SOURCES ${name}.c)
  foreach(source ${A_SOURCES})
    file(REAL_PATH ${source} path)
    file(RELATIVE_PATH shared ${PROJECT_SOURCE_DIR} ${path})
    string(MAKE_C_IDENTIFIER ${shared} shared)
    if(NOT TARGET ${shared})
      add_library(${shared} OBJECT ${path})
      target_link_libraries(${shared} PRIVATE ${A_LINK} cmocka ampd_flags)
      target_compile_options(${shared} PRIVATE ${options})
    endif()
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${shared}>)
  endforeach()
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 900) # for a hang; a slow and busy machine, under ASan, is none
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${A_SUITE} SKIP_RETURN_CODE 77 TIMEOUT ${A_TIMEOUT})
endfunction()

# ampd_source_test(NAME SUITE COMMAND...): looks at the sources alone, and so once, in the release build.
function(ampd_source_test name suite)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    add_test(NAME ${name} COMMAND ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS ${suite} TIMEOUT 300)
  endif()
endfunction()

# ampd_long_tests(NAME SECONDS ...): those of this folder that begin first where tests run side by side, the longest before the
# others: so that none of them is left alone at the end.
function(ampd_long_tests)
  while(ARGN)
    list(POP_FRONT ARGN name seconds)
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES COST ${seconds})
    endif()
  endwhile()
endfunction()
