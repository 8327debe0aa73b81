# cmake -DIN=page.scd.in -DTEXT=page.scd -DOUT=page -DSCDOC=scdoc -DVERSION=1.2.3 [-DPROGRAM=program] -P man_page.cmake: fills in the
# program's usage, and has scdoc make the page.
cmake_minimum_required(VERSION 3.25)
if(PROGRAM)
  execute_process(COMMAND ${EMULATOR} ${PROGRAM} --usage-as=scdoc OUTPUT_VARIABLE USAGE COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${USAGE}" USAGE)
endif()
file(READ ${IN} text)
string(REPLACE "@VERSION@" "${VERSION}" text "${text}")
string(REPLACE "@USAGE@" "${USAGE}" text "${text}")
file(WRITE ${TEXT} "${text}")
get_filename_component(folder ${OUT} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${SCDOC} INPUT_FILE ${TEXT} OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
