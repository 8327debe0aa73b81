# cmake -DIN=file -DOUT=file.c -DNAME=symbol -P embed.cmake: a file as a C array and its size.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "#include \"tests/conformance/${NAME}.h\"
const uint8_t ${NAME}[] = {
${bytes}};
const size_t ${NAME}_size = sizeof(${NAME});
")
